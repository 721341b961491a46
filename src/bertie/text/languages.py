"""Codes of languages, for splitting sentences."""

import difflib

from bertie.base.errors import SettingsError

# ISO 639-1, with the English names of Debian's iso-codes.
_NAMES = """
aa Afar, ab Abkhazian, ae Avestan, af Afrikaans, ak Akan, am Amharic, an Aragonese, ar Arabic, as
Assamese, av Avaric, ay Aymara, az Azerbaijani, ba Bashkir, be Belarusian, bg Bulgarian, bh Bihari,
bi Bislama, bm Bambara, bn Bengali, bo Tibetan, br Breton, bs Bosnian, ca Catalan, ce Chechen, ch
Chamorro, co Corsican, cr Cree, cs Czech, cu Church Slavic, cv Chuvash, cy Welsh, da Danish, de
German, dv Divehi, dz Dzongkha, ee Ewe, el Greek, en English, eo Esperanto, es Spanish, et Estonian,
eu Basque, fa Persian, ff Fulah, fi Finnish, fj Fijian, fo Faroese, fr French, fy Western Frisian,
ga Irish, gd Scottish Gaelic, gl Galician, gn Guarani, gu Gujarati, gv Manx, ha Hausa, he Hebrew, hi
Hindi, ho Hiri Motu, hr Croatian, ht Haitian, hu Hungarian, hy Armenian, hz Herero, ia Interlingua,
id Indonesian, ie Interlingue, ig Igbo, ii Sichuan Yi, ik Inupiaq, io Ido, is Icelandic, it Italian,
iu Inuktitut, ja Japanese, jv Javanese, ka Georgian, kg Kongo, ki Kikuyu, kj Kuanyama, kk Kazakh, kl
Greenlandic, km Khmer, kn Kannada, ko Korean, kr Kanuri, ks Kashmiri, ku Kurdish, kv Komi, kw
Cornish, ky Kyrgyz, la Latin, lb Luxembourgish, lg Ganda, li Limburgish, ln Lingala, lo Lao, lt
Lithuanian, lu Luba-Katanga, lv Latvian, mg Malagasy, mh Marshallese, mi Maori, mk Macedonian, ml
Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese, my Burmese, na Nauru, nb Norwegian
Bokmål, nd Northern Ndebele, ne Nepali, ng Ndonga, nl Dutch, nn Norwegian Nynorsk, no Norwegian, nr
Southern Ndebele, nv Navajo, ny Chichewa, oc Occitan, oj Ojibwa, om Oromo, or Oriya, os Ossetian, pa
Punjabi, pi Pali, pl Polish, ps Pashto, pt Portuguese, qu Quechua, rm Romansh, rn Rundi, ro
Romanian, ru Russian, rw Kinyarwanda, sa Sanskrit, sc Sardinian, sd Sindhi, se Northern Sami, sg
Sango, si Sinhala, sk Slovak, sl Slovenian, sm Samoan, sn Shona, so Somali, sq Albanian, sr Serbian,
ss Swati, st Southern Sotho, su Sundanese, sv Swedish, sw Swahili, ta Tamil, te Telugu, tg Tajik, th
Thai, ti Tigrinya, tk Turkmen, tl Tagalog, tn Tswana, to Tonga, tr Turkish, ts Tsonga, tt Tatar, tw
Twi, ty Tahitian, ug Uyghur, uk Ukrainian, ur Urdu, uz Uzbek, ve Venda, vi Vietnamese, vo Volapük,
wa Walloon, wo Wolof, xh Xhosa, yi Yiddish, yo Yoruba, za Zhuang, zh Chinese, zu Zulu
"""
LANGUAGES = dict(entry.split(" ", 1) for entry in " ".join(_NAMES.split()).split(", "))  # {code: name}

# The other codes that sentencex maps to a language with rules (src/languages/fallbacks.rs, version 1.0.30).
_OTHER_CODES = """
aae abs ace acm ady aeb aeb-arab aln als alt ami anp apc arn arq ary arz ast atj avk awa azb ban
ban-bali bar bat-smg bbc bbc-latn bcc bci bdr be-tarask be-x-old bew bgn bjn blk bpy bqi btm bug
bug-bugi bxr cbk-zam cdo cdo-hant cdo-latn cpx cpx-hans cpx-hant crh crh-cyrl crh-latn csb de-at
de-ch de-formal dsb dtp dty dua egl eml es-formal ext fit fiu-vro fon frc frp frr fur gag gan
gan-hans gan-hant gcf gcr gld glk gom gom-deva gor gsw guc hak hif hke hrx hsb hsn hu-formal hyw iba
ike-cans ike-latn inh jut kaa kab kbd kbp kea kge khw kiu kjh kjp kk-arab kk-cn kk-cyrl kk-kz
kk-latn kk-tr ko-kp koi krc krl ksh ksw ku-arab ku-latn kum lad lbe lez lij liv ljp lki lld lmo lrc
ltg lua luz lzh lzz mad mag mai map-bms mdf mhr min mnc-latn mnc-mong mnw mo mrj ms-arab mui mwl myv
mzn nah nan nan-hant nan-latn nan-latn-pehoeji nan-latn-tailo nap nds nds-nl nia nl-informal nrm nyo
olo pcd pdc pdt pfl pms pnt pt-br pwn qug rgn rmy roa-rup roa-tara rsk rue rup ruq ruq-cyrl ruq-latn
rut sah scn sdc sdh se-fi se-no se-se ses sgs sh sh-cyrl sh-latn shi shy shy-latn sjd skr skr-arab
sli sma smn sr-cyrl sr-ec sr-el sr-latn srn sro stq sty szl szy tay tcy tet tg-cyrl tg-latn trv
tt-cyrl ttj tyv udm vec vep vls vmf vmw vot vro wls wuu wuu-hans wuu-hant xal xmf yue yue-hans
yue-hant zh-classical zh-cn zh-hans zh-hant zh-hk zh-min-nan zh-mo zh-my zh-sg zh-tw zh-yue
"""
OTHER_CODES = frozenset(_OTHER_CODES.split())

# The languages for which sentencex has rules; most others use the rules of a related one, the rest English.
WITH_RULES = (
    "am, ar, bg, bn, ca, da, de, el, en, es, fi, fr, gu, hi, hy, it, ja, kk, kn, ml, mr, my, nl, pa, pl, pt, "
    "ru, sk, ta, te, uk"
)


def is_language(code: str) -> bool:
    """Return whether a string is the code of a language."""
    return code in LANGUAGES or code in OTHER_CODES


def check_language(code: str) -> None:
    """Check that a string is the code of a language.

    Raises:
        SettingsError: it is not; the message has the nearest code.

    Example:
        >>> check_language("de")
        >>> check_language("german")
        Traceback (most recent call last):
        ...
        bertie.base.errors.SettingsError: language german: not an ISO 639-1 code; did you mean de? ...
    """
    if is_language(code):
        return
    near = _nearest_code(code)
    hint = f"did you mean {near}? " if near else ""
    raise SettingsError(
        f"language {code}: not an ISO 639-1 code; {hint}bertie has sentence rules for {WITH_RULES}; "
        f"for another language it uses the rules of a related one, or of English"
    )


def _nearest_code(text: str) -> str | None:
    """Return the code of the language that a name probably means.

    The name may be a locale or a misspelt code, too.
    """
    codes = {name.casefold(): code for code, name in LANGUAGES.items()}
    codes |= {code: code for code in LANGUAGES}
    text = text.casefold()
    near = difflib.get_close_matches(text, codes, n=1, cutoff=0.75)
    locale = text.replace("_", "-").partition("-")[0]  # de_DE
    return codes[near[0]] if near else codes.get(locale)
