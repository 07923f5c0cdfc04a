"""Translation between two files of aligned lines: Multi30k, English to German."""

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
    """A reader of `NAME.en` beside `NAME.de`: a sentence a line, and equally many lines."""

    source: str
    target: str

    def __call__(self, path: Path) -> Iterator[Example]:
        other = path.with_name(path.name.replace(f".{self.source}", f".{self.target}"))
        if not other.exists():
            raise DataError(f"{path}: its translation {other.name} is not beside it")
        ours, theirs = read_lines(path), read_lines(other)
        for number, text in ours:
            _, target = next(theirs, (0, None))
            if target is None or bool(text.strip()) != bool(target.strip()):
                raise DataError(
                    f"{path}:{number}: no sentence of {other.name} belongs to this line; they must be aligned"
                )
            if text.strip():
                yield Example(text=text, target=target, id=str(number))
        if any(target.strip() for _, target in theirs):
            raise DataError(f"{other}: it has more lines than {path.name}; they must be aligned")


_en_de = ParallelReader(source="en", target="de")
MULTI30K = Task(
    name="multi30k",
    kind="generation",
    metrics=("bleu", "chrf"),
    splits={
        split: TaskSplit(published_name=published, files=(SplitFile(path=f"{published}.en", reader=_en_de, rows=rows),))
        for split, published, rows in (
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
"""Multi30k: captions of pictures from English into German (Elliott et al., 2016)"""
