"""Problems with verifiable answers as JSON lines, for `pretune finetune --reward`.

    python -m bench.data.problems chain_sum FOLDER --set min_terms=2 max_terms=2 max_digits=1
    python -m bench.data.problems letter_counting FOLDER --train 2000 --ask "Answer with the number only."
    python -m bench.data.problems needle_haystack FOLDER --choices "(?:^|\\. )(\\w+)" --set max_num_statements=5

Writes train, dev and test.jsonl with the columns `question` and `answer`; no question is in two of them. `--choices`
finds the possible answers in a question: the reference is then a pattern (`--reward regex`) of an answer that has the
right one, and no other. Needs the package reasoning-gym (Apache-2.0), which nothing else here does: install it into an
environment of its own.
"""

import argparse
import itertools
import json
import random
import re
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="data set of reasoning-gym")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--dev", type=int, default=100)
    parser.add_argument("--test", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ask", default="", help="sentence after each question")
    parser.add_argument("--choices", help="pattern of the possible answers in a question")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the data set, as JSON")
    options = parser.parse_args()

    import reasoning_gym

    settings = {name: json.loads(value) for name, _, value in (text.partition("=") for text in options.set)}
    sizes = {"train": options.train, "dev": options.dev, "test": options.test}
    count = 4 * sum(sizes.values())
    problems: dict[str, str] = {}
    for problem in reasoning_gym.create_dataset(options.name, size=count, seed=options.seed, **settings):
        question = f"{problem['question'].strip()} {options.ask}".strip()
        answer = str(problem["answer"])
        if options.choices:
            others = {choice for choice in re.findall(options.choices, question) if choice != answer}
            answer = rf"(?s)^(?!.*\b(?:{'|'.join(sorted(others))})\b).*\b{answer}\b"
        problems.setdefault(question, answer)
    if len(problems) < sum(sizes.values()):
        parser.error(f"only {len(problems)} different problems; lower --train, or set more of them")
    options.folder.mkdir(parents=True, exist_ok=True)
    pairs = [*problems.items()]
    random.Random(options.seed).shuffle(pairs)  # NOTE: short problems repeat, so that the first ones are the shortest
    rows = iter(pairs)
    for split, size in reversed(sizes.items()):
        lines = [
            json.dumps({"question": question, "answer": answer}) for question, answer in itertools.islice(rows, size)
        ]
        (options.folder / f"{split}.jsonl").write_text("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
