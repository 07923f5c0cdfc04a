"""Language identification by script and frequent words: a guess for tags and counts, not for evaluation.

A script used by one language of the table decides at once (Greek, Thai, Hangul, kana). For Latin, Cyrillic and Arabic
letters, function words decide, a third of running text. One long sentence is mostly enough; a few words are "und", and
a language not in the table is "und" or confused with a related one. Accuracy: tests/text/test_language.py.
"""

import re
import unicodedata
from collections import Counter
from functools import cache

UNKNOWN = "und"
"""ISO 639 code of an undetermined language."""

_SAMPLE_CHARACTERS = 5_000  # characters used
_MIN_KNOWN_SHARE = 0.06  # minimum share of known words
_SCRIPTS = {
    "latin": "A-Za-zÀ-ɏḀ-ỿ",
    "cyrillic": "Ѐ-ӿ",
    "arabic": "\u0620-\u06ff",
    "han": "\u3400-\u9fff\U00020000-\U0003134f",
    "ja": "\u3040-\u30ff",
    "ko": "\uac00-\ud7a3\u1100-\u11ff",
    "el": "Ͱ-Ͽἀ-῿",
    "he": "\u05d0-\u05ea",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
    "bn": "\u0980-\u09ff",
    "ta": "\u0b80-\u0bff",
    "te": "\u0c00-\u0c7f",
    "ka": "\u10a0-\u10ff",
    "hy": "\u0530-\u058f",
}
_LETTERS = {name: re.compile(f"[{letters}]+") for name, letters in _SCRIPTS.items()}
_NOT_LATIN = re.compile(r"[^\x00-\u036f\u1e00-\u206f]+")
_WORDS = {
    "latin": {
        "en": """
            the of and to a in is was that for it with as his on be at by he this had not are but from or have an they
            which one you were her all she there would their we him been has when who will more no if out so said what
            up its about into than them can only other new some could time these two may then do while
        """,
        "fr": """
            de la le et les des en un une du dans est que qui pour pas au sur il par plus ne ce se avec son sont elle
            mais ou leur était sa être cette ont lui aux nous comme ses fait tout si même avait dont vous je on très
            sans d l c s qu n deux
        """,
        "de": """
            der die und das den von zu in ist mit nicht des sich auf für ein eine dem er es im auch als an werden war
            hat wird bei aus sie dass nach am um einer noch einen wie über nur so oder zum wurde haben aber vor zur
            durch man sein sind ihm ich ihr mir unter zwei
        """,
        "es": """
            de la que el en y a los se del las un por con no una su para es al lo como más o pero sus le ha fue este
            ya entre está cuando muy sin sobre ser también me hasta hay donde han quien desde todo nos durante todos
            uno les ni contra ese eso había él si
        """,
        "pt": """
            de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das à seu sua
            ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem mesmo aos ter
            seus quem nas me esse eles estão você tinha foram num
        """,
        "it": """
            di e il la che in un a per è una sono non con del si da le della dei nel alla come ha più gli al anche i
            lo ma delle se o nella su dal questo era ed ci dalla stato hanno suo loro due tra fu essere sua degli
            molto quando lui tutti mi così ne
        """,
        "nl": """
            de het een en van in is dat op te zijn met voor niet aan er om ook als dan maar bij nog uit heeft hij ze
            wordt door naar werd over tot die was worden of kan deze geen haar zich had hun ik meer je zo zij twee wat
            kunnen
        """,
        "sv": """
            och i att det som en på är av för med den till inte har de om ett han var jag men vi från så eller sig ska
            kan när hade vid också man där blev efter mycket sin över mot utan alla två under
        """,
        "da": """
            og i at det er en til af på for med den de som der et ikke har var han jeg vi men fra så eller sig kan
            blev om også ved efter blive hun når deres mod uden skal to over nu hvor være
        """,
        "pl": """
            w i na z się do nie że jest o to jak przez po od dla za są ale jego być oraz lub ma co tym który było czy
            już jej tylko ich tego tak został może był jako która które pod przed swoje lat ze we dwa
        """,
        "cs": """
            a v se na je že s z do o k i za po jako ve není by pro jsou od nebo který byl být jeho při jen ale má to
            bylo která jak si tak které byla jsem co podle už před také u nebyl dva
        """,
        "ro": """
            de și în a la cu pe o din că nu este un care mai să pentru se sau fi ca prin al are lui au fost ale unei
            ei după sunt într dar această cel cea când două
        """,
        "hu": """
            a az és hogy nem is egy ez van meg de csak el ha volt mint még már vagy ki amely minden azt fel kell mert
            be között után aki lett lehet ezt két ahol
        """,
        "fi": """
            ja on ei että se oli hän kun niin mutta ovat tai myös sen ole hänen jos kuin joka sitä olla voi ollut
            mukaan vuonna sekä jossa jälkeen vain jo kanssa mitä ne he olivat kuitenkin kaksi
        """,
        "tr": """
            ve bir bu da de için ile çok olarak daha gibi olan her kadar sonra ne ama o en veya ki değil var ilk iki
            olduğu ise tarafından mi göre ancak üzerine olduğunu yeni hem önce oldu
        """,
        "vi": """
            và của là các có được cho trong không một với những người đã này về khi để từ đến như mọi hay phải tại năm
            vào cũng ra sự đó theo nhiều trên bị ông việc làm nhà hai
        """,
        "id": """
            yang dan di dari untuk dengan pada ini itu dalam tidak akan adalah ke oleh sebagai atau juga telah orang
            dapat bahwa ada mereka karena tersebut ia sudah lebih saya seorang menjadi bisa
        """,
        "sw": """
            ya na wa kwa ni za katika la kila au yake kuwa hii vya wake hiyo pia lakini cha wote bila ambayo hata sana
            baada huo yao kama alikuwa si watu hivyo kuhusu yeye
        """,
        "ca": """
            de la i el que a en l d els les per un una és amb del no es al com més o però dels ha són aquest va ser
            seva també han aquesta molt entre fins on
        """,
    },
    "cyrillic": {
        "ru": """
            и в не на что с он как я по это но из к за то все же от для его о так был мы бы или при который у была они
            только еще когда уже до если их чтобы были со где может время также после
        """,
        "uk": """
            і в не на що з у та до як за це але від він по є для його про також або я бути має який при її був під час
            ми так були після їх то ще
        """,
        "bg": """
            и на да се в от за не с по че е са като но до при или това той който има към най със бъде му която след те
            беше през един само я
        """,
        "sr": """
            и у је да на се за од са не што као који су из али по то или има буде ће о до био он јер када била која
            још
        """,
    },
    "arabic": {
        "ar": """
            في من على أن إلى التي عن مع هذا كان ما لا أو هو الذي هذه كل بين وفي ذلك قد ولا له كما و بعد عند غير حتى
            كانت وقد لم أنه منها
        """,
        "fa": """
            و در به از که این را با است برای آن یک می هر خود تا شود باید یا او بر نیز هم کند دارد ها بود شده ما پس اما
        """,
        "ur": """
            کے کی میں ہے اور سے کا کو اس نے کہ پر ہیں یہ بھی جو کیا ایک ہر نہیں یا گا تھا وہ تو کر گیا لئے
        """,
    },
}


@cache
def _get_weights(script: str) -> dict[str, list[tuple[str, float]]]:
    """Return the weights of known words by language; words shared by several languages weigh less."""
    owners: dict[str, list[str]] = {}
    for lang, words in _WORDS[script].items():
        for word in words.split():
            owners.setdefault(word, []).append(lang)
    return {word: [(lang, 1 / len(langs)) for lang in langs] for word, langs in owners.items()}


def guess_language(text: str) -> str:
    """Return the likely ISO 639-1 code of a text, or `UNKNOWN`.

    >>> guess_language("Der Mensch ist frei geboren, und überall liegt er in Ketten.")
    'de'
    """
    sample = text[:_SAMPLE_CHARACTERS]
    letters = _count_scripts(sample)
    if not letters:
        return UNKNOWN
    script = max(letters, key=lambda name: letters[name])
    if script in ("han", "ja"):  # Japanese uses both
        return "ja" if letters.get("ja", 0) > 0.05 * letters.get("han", 0) else "zh"
    if script not in _WORDS:
        return script
    return _guess_by_words(sample, script)


def _count_scripts(sample: str) -> dict[str, int]:
    """Count the letters of each script."""
    non_latin = "".join(_NOT_LATIN.findall(sample))
    counts = {"latin": sum(map(len, _LETTERS["latin"].findall(sample)))}
    if non_latin:
        counts |= {
            name: sum(map(len, letters.findall(non_latin))) for name, letters in _LETTERS.items() if name != "latin"
        }
    return {name: count for name, count in counts.items() if count}


def _guess_by_words(sample: str, script: str) -> str:
    words = _LETTERS[script].findall(unicodedata.normalize("NFC", sample).lower())
    weights, score = _get_weights(script), dict[str, float]()
    for word, count in Counter(words).items():
        for lang, weight in weights.get(word, ()):
            score[lang] = score.get(lang, 0.0) + weight * count
    best, *runners_up = sorted(score.items(), key=lambda pair: -pair[1]) or [(UNKNOWN, 0.0)]
    sure = best[1] >= max(1.5, _MIN_KNOWN_SHARE * len(words)) and (not runners_up or best[1] > 1.2 * runners_up[0][1])
    return best[0] if sure else UNKNOWN
