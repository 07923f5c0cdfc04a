"""Licences of published tasks, as a pointer to what the publisher states, and files that belong to named ones.

No legal advice: read the terms at the source before data, or a model trained on it, are passed on.
"""

from collections.abc import Mapping

TASKS_BY_LICENCE: Mapping[str, str] = {
    "Apache-2.0": "cloze scitail",
    "Apache-2.0 (annotations)": "imdb_cf",
    "BSD 2-clause": "copa",
    "CC BY": "winogrande",
    "CC BY 4.0": "wnli wsc blimp lambada",
    "CC BY-SA 3.0": "boolq nq_open",
    "CC BY-SA 4.0": "qnli snli squad1 squad1_articles squad2 arc arc_easy arc_challenge ud_ewt ud_ewt_dep",
    "CC BY-NC 4.0": "anli wic",
    "CC BY-NC-SA 3.0": "sick sick_entailment",
    "CC BY-NC-ND 4.0": "samsum",
    "MIT": "swag hellaswag commonsenseqa",
    "Microsoft Research data licence": "mrpc",
    "MPQA licence": "mpqa",
    "LDC user agreement": "conll2005_srl conll2012_srl conll2012_coref",
    "Reuters corpus, research use": "conll2003",
    "terms of Quora, non-commercial": "qqp",
    "research use": "multirc emotion",
    "non-commercial research": "agnews",
    "texts of the BBC, research use": "xsum",
    "mixed, stated on the page of the benchmark": "mnli stsb sts12-16 sts12 sts13 sts14 sts15 sts16 coqa "
    "wmt14_en_de wmt14_en_fr wmt16_en_ro",
    "not stated, texts under fair use": "cola",
    "not stated, captions of Flickr30K, research use": "multi30k multi30k_lines",
    "not stated, texts belong to their owners": "cnndm triviaqa eli5",
}
UNKNOWN_LICENCE = "not stated"

COMPANION_FILES: Mapping[str, str] = {
    **dict.fromkeys(("multi30k", "wmt14_en_de"), "and the German side of each file (.de)"),
    "wmt14_en_fr": "and the French side of each file (.fr)",
    "wmt16_en_ro": "and the Romanian side of each file (.ro)",
    "cranfield": "and cranqrel",
    "imdb": "each a folder with pos/*.txt and neg/*.txt",
    "cnndm": "and with lists of URLs cnn/stories/ and dailymail/stories/",
}
"""Files that a task reads beside those that it names."""
