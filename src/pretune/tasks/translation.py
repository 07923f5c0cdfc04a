"""Translation with two files of aligned lines: Multi30k, English to German."""

from collections.abc import Iterator
from pathlib import Path

from pretune.core.config import spec
from pretune.core.errors import DataError
from pretune.tasks.example import Example
from pretune.tasks.table_rows import read_lines
from pretune.tasks.task import SplitFile, Task, TaskSplit
from pretune.tasks.template import Template


@spec
class ParallelReader:
    """A reader of `NAME.en` and `NAME.de` in one folder: one sentence per line, as many lines in both."""

    source: str
    target: str

    def __call__(self, path: Path) -> Iterator[Example]:
        target_path = path.with_name(path.name.replace(f".{self.source}", f".{self.target}"))
        if not target_path.exists():
            raise DataError(f"{path}: its translation {target_path.name} is missing in the same folder")
        source_lines, target_lines = read_lines(path), read_lines(target_path)
        for number, text in source_lines:
            _, target = next(target_lines, (0, None))
            if target is None or bool(text.strip()) != bool(target.strip()):
                raise DataError(
                    f"{path}:{number}: no matching line in {target_path.name}; the files must be aligned line by line"
                )
            if text.strip():
                yield Example(text=text, target=target, id=str(number))
        if any(target.strip() for _, target in target_lines):
            raise DataError(f"{target_path}: more lines than {path.name}; the files must be aligned line by line")


_en_de = ParallelReader(source="en", target="de")
MULTI30K = Task(
    name="multi30k",
    kind="generation",
    metrics=("bleu", "chrf"),
    splits={
        split: TaskSplit(
            published_name=published_name, files=(SplitFile(path=f"{published_name}.en", reader=_en_de, rows=rows),)
        )
        for split, published_name, rows in (
            ("train", "train", 29000),
            ("dev", "val", 1014),
            ("test", "test_2016_flickr", 1000),
            ("test_2017", "test_2017_flickr", 1000),
            ("test_2017_mscoco", "test_2017_mscoco", 461),
            ("test_2018", "test_2018_flickr", 1071),
        )
    },
    template=Template(source="translate English to German: {text}", target="{target}"),
)
"""Multi30k: image captions from English to German (Elliott et al., 2016)"""
