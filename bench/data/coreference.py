"""Documents with clusters of mentions: made up ones, and those of the Winograd schemas of SuperGLUE.

    python -m bench.data.coreference synthetic FOLDER [--documents 600]
    python -m bench.data.coreference wsc FOLDER
    python -m bench.data.coreference pairs RUN

`synthetic` writes train, dev and test.jsonl: a man, a woman and a third person of either gender, with jobs and things.
Names and pronouns (of the gender's last mention), jobs ("the nurse") and things ("it") refer to them. No rule on the
strings of mentions or on their order finds the clusters: the gender of a name, and what may be "it", must be learned.
`wsc` writes train.jsonl and test.jsonl from the training and validation pairs that corefer, one document for each text,
with the clusters that the pairs give. `pairs` prints the accuracy of a fine-tuned run on all validation pairs: two
spans corefer if a predicted cluster has both. The pairs come from $PRETUNE_DATA (default: ../shared/data next to the
checkout).
"""

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from bench import common
from pretune.core.errors import DataError
from pretune.runs.finetune.finetuned_run import FinetunedRun
from pretune.tasks.types.coreference import COREFERENCE, join_links

_NAMES = {
    "he": "Adam Boris Carl David Emil Frank George Henry Ivan Jack Kevin Leo Mark Oscar Paul Robert Simon Tom",
    "she": "Alice Betty Clara Diana Emma Fiona Grace Helen Irene Julia Kate Lucy Maria Nora Olga Rosa Sara Tina",
}
_NOUNS = (
    "nurse lawyer farmer teacher pilot baker painter driver guard clerk",
    "car house boat piano camera bicycle table book lamp guitar",
)
NAMES = {gender: names.split() for gender, names in _NAMES.items()}
JOBS, THINGS = (nouns.split() for nouns in _NOUNS)
PRONOUNS = {"he": ("he", "him", "his"), "she": ("she", "her", "her")}
SENTENCES = (
    "{s} worked as a {job} .",
    "{s} bought {o} in the city .",
    "{s} showed {o} to {t} .",
    "{s} met {t} on {p} way home .",
    "{s} never liked {o} .",
    "{o} was old , but {s} kept {o} .",
    "{s} told {t} about {o} .",
    "In the evening {s} called {p} sister .",
    "{t} asked {s} for help with {o} .",
)
WSC_FILES = {"train": "train", "test": "val"}


class Story:
    """A document in the making: persons and things with the words that refer to them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.words, self.sentences = rng, list[str](), list[list[str]]()
        genders = ["he", "she", rng.choice(["he", "she"])]
        self.names = {name: gender for gender in genders for name in rng.sample(NAMES[gender], 2)}
        self.persons = rng.sample(sorted(self.names), 3)
        self.things = rng.sample(THINGS, 2)
        self.jobs = dict(zip(rng.sample(JOBS, 3), self.persons, strict=True))
        self.latest: dict[str, str] = {}  # what a pronoun refers to
        self.mentions: defaultdict[str, list[list[int]]] = defaultdict(list)
        self.stated_jobs: set[str] = set()

    def add(self, entity: str, words: str, pronoun: str) -> None:
        """Add a mention."""
        first = len(self.words)
        self.words += words.split()
        self.mentions[entity].append([first, len(self.words) - 1])
        self.latest[pronoun] = entity

    def add_person(self, person: str, form: int, starts: bool) -> None:
        """Add a mention of a person: a pronoun where it is clear, a known job, or the name."""
        gender = self.names[person]
        job = next(job for job, owner in self.jobs.items() if owner == person)
        words = person
        if self.latest.get(gender) == person and self.rng.random() < 0.7:
            words = PRONOUNS[gender][form]
        elif job in self.stated_jobs and self.rng.random() < 0.4:
            words = f"the {job}"
        self.add(person, words[0].upper() + words[1:] if starts else words, gender)

    def add_thing(self, thing: str, starts: bool) -> None:
        """Add a mention of a thing."""
        is_new = thing not in self.mentions
        words = "it" if self.latest.get("it") == thing else f"a {thing}" if is_new else f"the {thing}"
        self.add(thing, words[0].upper() + words[1:] if starts else words, "it")

    def add_sentence(self) -> None:
        """Add a sentence about two persons and a thing."""
        person, other = self.rng.sample(self.persons, 2)
        thing, job = self.rng.choice(self.things), next(job for job, owner in self.jobs.items() if owner == person)
        start = len(self.words)
        for word in self.rng.choice(SENTENCES[:1] if person not in self.mentions else SENTENCES[1:]).split():
            is_first = len(self.words) == start
            match word:
                case "{s}":
                    self.add_person(person, int(self.words[-1:] == ["asked"]), is_first)
                case "{t}":
                    self.add_person(other, int(not is_first), is_first)
                case "{p}":
                    self.add(person, PRONOUNS[self.names[person]][2], self.names[person])
                case "{o}":
                    self.add_thing(thing, is_first)
                case "{job}":
                    self.words.append(job)
                    self.stated_jobs.add(job)
                case _:
                    self.words.append(word)
        self.sentences.append(self.words[start:])

    def build_row(self) -> dict[str, Any]:
        """Return the document; what is mentioned once has no cluster."""
        clusters = [spans for spans in self.mentions.values() if len(spans) > 1]
        return {"sentences": self.sentences, "clusters": clusters}


def make_documents(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield documents of five to nine sentences."""
    rng = random.Random(seed)
    for _ in range(count):
        story = Story(rng)
        for _ in range(rng.randint(5, 9)):
            story.add_sentence()
        yield story.build_row()


def split_words(text: str) -> list[str]:
    """Split a text into words as `pretune predict` does."""
    return [*COREFERENCE.inputs.read_fields({}, text, "a text")["words"]]


def find_span(text: str, index: int, words: list[str]) -> tuple[int, int]:
    """Return the first and last of some words that begin in a word between blanks."""
    start, count = len(split_words(" ".join(text.split()[:index]))), len(words)
    all_words, words = ([word.lower() for word in part] for part in (split_words(text), words))
    places = [place for place in range(start, len(all_words)) if all_words[place : place + count] == words]
    if not places:
        raise DataError(f"no {' '.join(words)!r} at word {index} of {text!r}")
    return places[0], places[0] + count - 1


def read_pairs(split: str) -> Iterator[tuple[str, tuple[int, int], tuple[int, int], bool]]:
    """Yield the text, the two spans and the label of each pair."""
    with gzip.open(common.find_data(f"tasks/wsc/{split}.jsonl.gz"), "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            target = row["target"]
            spans = (
                find_span(row["text"], target[f"{name}_index"], split_words(target[f"{name}_text"]))
                for name in ("span1", "span2")
            )
            yield row["text"], next(spans), next(spans), row["label"]


def make_schemas(split: str) -> Iterator[dict[str, Any]]:
    """Yield a document for each text with a pair that corefers."""
    links = defaultdict(list)
    for text, first, second, is_same in read_pairs(split):
        if is_same:
            links[text].append((first, second))
    for text, pairs in links.items():
        fields = COREFERENCE.inputs.read_fields({}, text, "a text")
        ends = [*accumulate(fields["sentences"])]
        sentences = [fields["words"][start:end] for start, end in pairwise([0, *ends])]
        yield {"sentences": sentences, "clusters": join_links(pairs)}


def score_pairs(run: FinetunedRun) -> dict[str, float]:
    """Return the accuracy on all pairs of the validation split, and the share of the larger class."""
    pairs = [*read_pairs(WSC_FILES["test"])]
    predictions = run.predict([text for text, *_ in pairs])
    found = [
        any([*first] in cluster and [*second] in cluster for cluster in prediction["clusters"])
        for (_, first, second, _), prediction in zip(pairs, predictions, strict=True)
    ]
    gold = [is_same for *_, is_same in pairs]
    share = sum(gold) / len(gold)
    correct = sum(ours == theirs for ours, theirs in zip(found, gold, strict=True))
    return {"accuracy": correct / len(gold), "majority": max(share, 1 - share), "linked": sum(found) / len(found)}


def write_documents(path: Path, documents: Iterator[dict[str, Any]]) -> None:
    """Write documents as JSONL, and print their numbers."""
    rows = [*documents]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    words = sum(len(sentence) for row in rows for sentence in row["sentences"])
    print(f"{path}: {len(rows)} documents, {words} words, {sum(len(row['clusters']) for row in rows)} clusters")


def main() -> None:
    """Write the documents, or score a run."""
    parser = common.build_parser(__doc__)
    parser.add_argument("kind", choices=["synthetic", "wsc", "pairs"])
    parser.add_argument("folder", type=Path, help="of the documents, or the run of `pairs`")
    parser.add_argument("--documents", type=int, default=600, help="for training; a sixth of it for dev and for test")
    options = parser.parse_args()
    if options.kind == "pairs":
        common.print_result(score_pairs(FinetunedRun.open(options.folder)), options.out)
    elif options.kind == "wsc":
        for name, split in WSC_FILES.items():
            write_documents(options.folder / f"{name}.jsonl", make_schemas(split))
    else:
        for seed, (name, share) in enumerate({"train": 1, "dev": 6, "test": 6}.items()):
            count = options.documents // share
            write_documents(options.folder / f"{name}.jsonl", make_documents(count, seed))


if __name__ == "__main__":
    main()
