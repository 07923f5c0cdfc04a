"""Maximum spanning tree of a sentence with one root (Chu and Liu, 1965; Edmonds, 1967).

scores = np.array([[1.0, 0.0, 9.0],        # of word 1: the root, word 1, word 2 as head
                   [5.0, 9.0, 0.0]])       # of word 2
find_tree(scores)                          # [2, 0]: 2 is the head of 1, the root that of 2
"""

import numpy as np
from numpy.typing import NDArray

from pretune.core.errors import DataError

Scores = NDArray[np.floating]


def find_tree(scores: Scores) -> list[int]:
    """Return the heads of n words in the tree of the highest total score with exactly one word below the root.

    `scores[w, h]` `[n, 1 + n]` is the score of head h (0: the root) for word w + 1; the score of a word as its own head
    is ignored. Raises DataError if a score is NaN or infinite.

    >>> find_tree(np.array([[3.0, 0.0, 1.0], [3.0, 2.0, 0.0]]))
    [0, 1]
    """
    count, words = len(scores), np.arange(len(scores))
    if not count:
        return []
    values = scores.astype(np.float64)
    values[words, words + 1] = values[:, 0]
    if not np.isfinite(values).all():
        raise DataError("the scores of heads must be finite; the model may have diverged")
    # Every tree has a word below the root. With a penalty larger than any difference between the totals of two trees,
    # the best tree has exactly one.
    values[:, 0] -= 1.0 + count * (values.max() - values.min())
    matrix = np.full((1 + count, 1 + count), -np.inf)  # [dependent, head]; the root has no head
    matrix[1:] = values
    np.fill_diagonal(matrix, -np.inf)
    heads: list[int] = _find_arborescence(matrix)[1:].tolist()
    return heads


def _find_arborescence(scores: Scores) -> NDArray[np.int64]:
    """Return the head of each node in the best tree below node 0; a cycle of best heads is contracted to one node."""
    heads = np.zeros(len(scores), dtype=np.int64)
    heads[1:] = scores[1:].argmax(axis=1)
    cycle = _find_cycle(heads)
    if cycle is None:
        return heads
    nodes = np.arange(len(scores))
    rest = nodes[~np.isin(nodes, cycle)]  # the root first
    cycle_node = len(rest)  # number of the cycle among the nodes of the smaller problem
    cycle_scores = scores[cycle, heads[cycle]]
    entering = scores[np.ix_(cycle, rest)] - cycle_scores[:, None]  # gain of breaking the cycle at a node
    leaving = scores[np.ix_(rest, cycle)]
    broken, source = entering.argmax(axis=0), leaving.argmax(axis=1)
    smaller = np.full((cycle_node + 1, cycle_node + 1), -np.inf)
    smaller[:-1, :-1] = scores[np.ix_(rest, rest)]
    smaller[-1, :-1], smaller[:-1, -1] = entering.max(axis=0), leaving.max(axis=1)
    smaller[0] = -np.inf
    inner = _find_arborescence(smaller)
    for number, node in enumerate(rest.tolist()):
        if number:
            head = int(inner[number])
            heads[node] = cycle[source[number]] if head == cycle_node else rest[head]
    heads[cycle[broken[inner[cycle_node]]]] = rest[inner[cycle_node]]
    return heads


def _find_cycle(heads: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the nodes of a cycle, or None."""
    state = np.zeros(len(heads), dtype=np.int64)  # the walk that reached a node first
    state[0] = -1
    for start in range(1, len(heads)):
        node = start
        while not state[node]:
            state[node] = start
            node = int(heads[node])
        if state[node] == start:
            cycle = [node]
            while (following := int(heads[cycle[-1]])) != node:
                cycle.append(following)
            return np.array(cycle)
    return None
