"""Averaged static vectors and a linear classifier: the continuous bag of words."""

from collections.abc import Sequence

from pretune.adaptation.static.word2vec import Word2Vec
from pretune.core.config import spec
from pretune.evaluation.baselines.base import Label, Predictor, Text, encode_labels, split_pairs
from pretune.evaluation.baselines.features import average_vectors
from pretune.evaluation.baselines.linear import fit_best_c
from pretune.evaluation.baselines.majority import Majority
from pretune.inference.word_vectors import WordVectors


@spec
class AveragedVectors:
    """Logistic regression on the mean word vector of a text; the vectors are read from a file or trained here."""

    vectors: str | None = None  # file in word2vec's or GloVe's text format; None: trained on the task's texts
    word2vec: Word2Vec = Word2Vec(epochs=10, min_count=2)
    choices: tuple[float, ...] = (0.03, 0.3, 3.0, 30.0)  # candidates for C
    folds: int = 3

    def fit(self, texts: Sequence[Text], labels: Sequence[Label], *, seed: int = 0) -> Predictor:
        """Train on labelled texts (or pairs)."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if len(set(labels)) < 2:
            return Majority().fit(texts, labels)
        vectors = WordVectors.load(self.vectors) if self.vectors else self._train(texts, seed)
        x, (classes, y) = average_vectors(vectors, texts), encode_labels(labels)
        scale = StandardScaler().fit(x)
        model = LogisticRegression(max_iter=300, random_state=seed)
        pipeline = make_pipeline(scale, fit_best_c(model, scale.transform(x), y, self.choices, self.folds, seed))

        def predict(texts: Sequence[Text]) -> list[Label]:
            return [classes[i] for i in pipeline.predict(average_vectors(vectors, texts))] if texts else []

        return predict

    def _train(self, texts: Sequence[Text], seed: int) -> WordVectors:
        first, second = split_pairs(texts)
        words = [text for text in [*first, *(second or [])] if text.strip()]
        return self.word2vec.train(words, seed=seed)
