"""Abbreviations by language: words with a full stop that does not end a sentence, listed without that stop.

Lower case, unless the word in lower case is another one ("Sat." and "sat.").

    non_final  a name or an explanation follows: "Dr. Smith", "e.g. this"
    numbers    no sentence end before a number: "No. 5", "Jan. 3"
    ambiguous  a sentence end only before a typical first word: "Acme Inc. was …", "Acme Inc. The …"

`starters` are those words: they are rarely capitalised for another reason.
"""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Abbreviations:
    """Abbreviations of a language, and typical first words of its sentences."""

    non_final: frozenset[str]
    numbers: frozenset[str]
    ambiguous: frozenset[str]
    starters: frozenset[str]
    ordinals: bool  # "3. Oktober": a full stop marks an ordinal number
    loose: bool  # a sentence may start in lower case after ! and ?; not in French: "! dit-il"


_COMMON = {
    "non_final": "e.g i.e cf viz approx ca resp vs prof dr",
    "numbers": "no nr p pp vol art par abs fig figs tab cap ch n°",
    "ambiguous": "al etc inc ltd co corp bros ed eds ibid op cit a.d b.c a.m p.m ph.d u.s u.k u.n d.c tel fax ext",
    "starters": "",
}
_LANGUAGES = {
    "en": {
        "non_final": """
            mr mrs ms messrs mx dr prof rev fr hon gov sen rep reps pres supt capt cpt col cmdr comdr gen lt lieut maj
            sgt cpl pvt adm brig insp mt ste vs v e.g eg i.e ie cf viz esp approx ca attn dept asst assoc univ
            incl excl msgr amb
        """,
        "numbers": """
            no nos nr p pp pg vol vols art arts sec secs ch chap chaps fig figs eq eqs tab ed ver para par st rt op
            jan feb mar apr jun jul aug sep sept oct nov dec c ca circa fl b d r approx est pop q v w
        """,
        "ambiguous": """
            jr sr st inc ltd co corp bros llc plc etc al ave blvd rd ln ct apt mfg intl natl bldg a.m p.m u.s u.k u.n
            u.s.a d.c ph.d m.d b.a m.a b.sc m.sc b.s m.s ft lb lbs oz yd mi sq hr hrs ed eds trans ibid op cit mon tue
            tues thu thur thurs fri jan feb apr jun jul aug sep sept oct nov dec a.k.a r.i.p p.s n.b fig vol pp calif
            ariz ark colo conn fla kan ky md mich minn neb nev okla penn tenn tex va wis wyo ont que Sat Sun Wed Mar
            Ill Wash Ore Ind La Pa Ga Mo Cal Mont Min Sec
        """,
        "starters": """
            a about above according after all also although among an and another any anyone are as at because before
            both but by can can't could despite did didn't do does doesn't don't during each even every everyone for
            from further furthermore had has have having he he's her here here's his how however i i'd i'll i'm i've
            if in indeed instead is it it's its just last later let let's like many may maybe meanwhile moreover most
            much my nevertheless no nobody not nothing now of on once one only or other others our over perhaps please
            she she's should since so some someone sometimes soon still such than thanks that that's the their them
            then there there's therefore these they they're this those though through thus to today together tomorrow
            two under unfortunately unless unlike until upon was wasn't we we'll we're we've well were what what's
            when where whereas whether which while who why will with within without would yes yet you you'll you're
            your
        """,
    },
    "de": {
        "non_final": """
            hr fr frl dr prof dipl ing st sog bzw z.b d.h u.a v.a i.d.r ca vgl evtl ggf inkl exkl zzgl bspw insb z.zt
            s.o s.u o.ä u.ä geb gest verh röm kath ev
        """,
        "numbers": "nr s bd abs art kap abb tab jan feb mär apr jun jul aug sep sept okt nov dez jh",
        "ambiguous": "usw etc gmbh mio mrd std min sek str jhd jh n.chr v.chr chr",
        "starters": """
            aber als am an auch auf aus bei da damit dann das dass dem den der des deshalb die dies diese dieser
            dieses doch du durch ein eine einen einer er erst es für hier ich ihr ihre im in ist ja jedoch jetzt man
            mit nach nachdem nicht nun nur ob obwohl oder schon sein seine seit sich sie sind so trotz um und unter
            vom von vor war warum was weil wenn wer wie wir wo zu zum zur
        """,
    },
    "fr": {
        "non_final": "m mm mme mmes mlle mlles mgr me dr pr prof st ste cf p.ex c.-à-d av apr env",
        "numbers": "no n° p pp t vol art chap fig janv févr avr juil sept oct nov déc",
        "ambiguous": "etc j.-c cie sté éd tél bd boul",
        "starters": """
            à ainsi alors après au aussi avec c'est ce cependant ces cet cette dans de depuis des donc du elle elles
            en enfin et il ils j'ai je l'on la le les leur lorsque mais mon ne nous on or ou où par parce pendant pour
            puis quand que quel qui sa sans se ses si son sous sur tous tout un une vous
        """,
    },
    "es": {
        "non_final": "sr sra sras sres srta d dª dr dra prof profa gral ing lic ud uds vd vds p.ej s.a cf fr sto sta",
        "numbers": "no núm n° p pág págs pp vol art cap fig tel ene feb mar abr may jun jul ago sep sept oct nov dic",
        "ambiguous": "etc ee.uu a.c d.c cía ltda av avda",
        "starters": """
            a además ahora al algunos ante antes así aunque como con cuando de del desde después durante e el ella
            ellos en entonces era es esta este esto estos fue ha hasta hay la las lo los más mi mientras muchos muy
            nada ni no nos o para pero por porque pues que quien se según ser si sin sobre su sus también tan todo
            todos tras tu un una y ya yo
        """,
    },
    "it": {
        "non_final": "sig sigg sigra sig.ra sig.na dott dott.ssa prof prof.ssa ing avv arch on mons p.es es cfr s.p.a",
        "numbers": "n nn p pp pag vol art cap fig tel gen feb mar apr mag giu lug ago set ott nov dic",
        "ambiguous": "ecc etc a.c d.c",
        "starters": """
            a ad al alla anche che chi ci come con così da dal della dopo dove e ed era gli ha i il in io l'uomo la le
            lo ma mentre nel nella noi non o per perché però più poi quando quella quello questa questo se si sono su
            tra un una uno
        """,
    },
    "pt": {
        "non_final": "sr sra srs sras dr dra prof profa d exmo exma p.ex cf st sto sta eng",
        "numbers": "n nº no p pág págs pp vol art cap fig tel jan fev mar abr mai jun jul ago set out nov dez",
        "ambiguous": "etc a.c d.c ltda cia av",
        "starters": """
            a ainda além ao após aquela aquele as assim até com como da de depois desde do e ela ele eles em então
            entre era essa esse esta este eu foi há isso já mais mas na não no nos o onde os para pela pelo pois por
            porque quando que quem se sem seu sobre sua também todos um uma você
        """,
    },
    "nl": {
        "non_final": "dhr mevr mw dr drs prof ir ing mr st bijv bv d.w.z m.a.w o.a m.b.t t.o.v z.g zgn resp ca jhr",
        "numbers": "nr p pp blz art fig hfdst jan feb mrt apr jun jul aug sep sept okt nov dec",
        "ambiguous": "enz etc n.v b.v a.d v.chr n.chr",
        "starters": """
            aan al als bij daar daarna dan dat de deze die dit door dus een en er ge haar had het hij hier hoe ik in
            is je maar met na naar niet nog nu of om omdat ook op over te toen tot uit van voor waar want was wat we
            wie wij zal ze zij zijn zo
        """,
    },
    "cs": {
        "non_final": "p pí sl dr prof doc ing mgr bc mudr judr phdr sv tzv např popř resp tj mj cca viz",
        "numbers": "č čís s str obr tab kap odst čl sv roč",
        "ambiguous": "atd apod aj st př.n.l n.l kčs",
        "starters": """
            a ale ani až by být co do i já jak jako je jeho její jen jsem k kde když která které který na nebo není o
            od po pod podle pro proto před při s se si tak také tato ten tento to v ve však z za ze že
        """,
    },
    "pl": {
        "non_final": "p dr prof mgr inż doc hab ks św sw im gen płk mjr kpt por tzn tzw tj np m.in ww zob",
        "numbers": "nr s str ust art rozdz rys tab poz t ok",
        "ambiguous": "itd itp etc r w n.e p.n.e ul al",
        "starters": """
            a ale bo by była było być co czy dla do gdy i ich ja jak jako jednak jego jej jest już która które który
            lecz ma mi na nie o od on ona po pod podczas potem przed przez przy są się tak także tam ten to tu tylko w
            we więc z za ze że
        """,
    },
    "ru": {
        "non_final": "г-н г-жа им св т.е т.н проф акад доц ген см ср напр т",
        "numbers": "г гг с стр рис табл гл ст п п.п кн вып № ул д кв тел",
        "ambiguous": "т.д т.п др пр г гг в вв н.э руб коп тыс млн млрд",
        "starters": """
            а без более бы был была было были в весь во вот все всё вы где да для до его ее её если есть же за здесь и
            из или им их к как когда который кто ли мне мы на над не него нет но о об он она они от перед по под после
            потом при с со так также там то тогда того только ты у уже хотя чего что чтобы это этого этот я
        """,
    },
    "uk": {
        "non_final": "п пп ім св тобто т.зв проф акад доц ген див напр",
        "numbers": "р рр с ст рис табл гл п кн вип № вул буд кв тел",
        "ambiguous": "т.д т.п та ін р рр ст н.е грн коп тис млн млрд",
        "starters": """
            а але без був була було були в від він вона вони все ви для до з за й і із його її їх коли ми на не ні о
            один по при про та так також там те ти то тому у хоча це цей що як який якщо я
        """,
    },
    "fi": {
        "non_final": "esim ts ks vrt prof tri hra rva nti mm",
        "numbers": "s nro klo n v",
        "ambiguous": "jne yms ym eaa jaa",
    },
    "sv": {
        "non_final": "t.ex d.v.s bl.a s.k prof dr hr fr",
        "numbers": "s nr kap fig",
        "ambiguous": "osv m.m etc f.kr e.kr",
    },
    "tr": {
        "non_final": "dr prof doç av sn hz st örn vb",
        "numbers": "no s sf c m",
        "ambiguous": "vb vs m.ö m.s a.ş ltd şti",
    },
}
_ORDINALS = frozenset({"de", "cs", "pl", "fi", "tr", "da", "no", "nb", "hu", "sk", "sl", "hr", "et", "lv", "sv"})


@cache
def get_abbreviations(lang: str) -> Abbreviations:
    """Return the lists of a language (ISO 639-1 code); only the common ones if it has none."""
    code = lang.lower().partition("-")[0]
    entries = _LANGUAGES.get(code, {})
    words = {name: frozenset(f"{_COMMON[name]} {entries.get(name, '')}".split()) for name in _COMMON}
    return Abbreviations(**words, ordinals=code in _ORDINALS, loose=code == "en")
