"""Ids are those of the Python ``tokenizers`` library, in many scripts and in any mixture of them."""

import json
import os
import random
from pathlib import Path

import pytest

from laneway import Loader, Recipe

tokenizers = pytest.importorskip("tokenizers")

FIXTURES = Path(os.environ.get("LANEWAY_FIXTURES", Path(__file__).parents[4] / "shared" / "fixtures")) / "tokenizers"
FAMILIES = ["bert_base_cased", "gpt2", "gpt_neox", "mistral01", "xlnet_base_cased"]

# The first sentence of the first article of the Universal Declaration of Human Rights.
SENTENCES = [
    "All human beings are born free and equal in dignity and rights.",
    "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق.",
    "תמام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "人人生而自由,在尊严和权利上一律平等。",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "የሰው፡ልጅ፡ሁሉ፡ሲወለድ፡ነጻና፡በክብርና፡በመብትም፡እኩልነት፡ያለው፡ነው።",
    "def f(x):\n\treturn {'a': x ** 2, \"b\": [1_000, 0xFF]}  # ≠\r\n",
    "na\u00efve nai\u0308ve \u1112\u1161\u11ab\u1100\u1173\u11af \u200fשלום\u200e a\u0000b \ufeff",
    "1234567890 12,345.67 ½ ² ٣ ५ 👩‍👩‍👧‍👦 🇪🇺 👍🏽 e\u0301 \u00a0\u2003\u200b ﬁ ＡＢＣ ǅ",
]


def mixtures(count):
    """Documents from those sentences: whole, in parts, in other cases, run together, and with odd white space."""
    draw = random.Random(7)
    yield from SENTENCES
    for _ in range(count):
        pieces = []
        for _ in range(draw.randint(1, 6)):
            sentence = draw.choice(SENTENCES)
            start = draw.randrange(len(sentence))
            piece = sentence[start : start + draw.choice([1, 3, 10, 200])]
            pieces.append(draw.choice([str, str, str.upper, str.title, str.swapcase])(piece))
        yield draw.choice(["", " ", "  ", "\n", "\n\n", "\t", " \n ", "'", "-", "'s "]).join(pieces) or "x"


@pytest.mark.skipif(not FIXTURES.exists(), reason=f"no {FIXTURES}; set LANEWAY_FIXTURES to the folder of fixtures")
@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_tokenizers_library_on_a_multilingual_corpus(family, tmp_path, monkeypatch):
    monkeypatch.setenv("LANEWAY_CACHE", os.environ.get("LANEWAY_CACHE", str(tmp_path / "cache")))
    documents = list(mixtures(2000))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": d}, ensure_ascii=i % 2 == 0) + "\n" for i, d in enumerate(documents)), encoding="utf-8")
    recipe = Recipe.parse(
        f"""
        [[dataset]]
        name = "texts"
        paths = "texts.jsonl"
        exhausted = "stop"
        [tokenizer]
        path = {json.dumps(str(FIXTURES / f"{family}.json"))}
        special_tokens = "none"
        [pack]
        max_length = 8192
        algorithm = "none"
        long_documents = "error"
        [shuffle]
        buffer_size = 0
        [batch]
        global_batch = 8
        """,
        tmp_path,
    )
    reference = tokenizers.Tokenizer.from_file(str(FIXTURES / f"{family}.json"))
    reference.no_truncation()
    reference.no_padding()
    # Text that spells a control token stays text: none of these does.
    expected = [e.ids for e in reference.encode_batch(documents, add_special_tokens=False)]
    loader = Loader(recipe, framework="numpy")
    seen = 0
    for batch in loader:
        for piece in batch.provenance:
            document, at = int(piece["document"]), int(piece["offset"])
            ids = batch.input_ids[int(piece["row"]), at : at + int(piece["length"])].tolist()
            assert ids == expected[document], f"document {document}: {documents[document]!r}"
            seen += 1
    # Of what a tokenizer makes nothing (white space alone, in some), nothing comes.
    assert seen == sum(1 for ids in expected if ids)
    assert "fast" in loader.stats["tokenizer"], loader.stats["tokenizer"]
