"""The server's page in a real browser, with the real server and small models."""

import re
from urllib.parse import parse_qsl, urlencode
from urllib.request import urlopen

import numpy as np
import pytest
from tests.browser.conftest import AXE, SCREENSHOTS, serving
from tests.inference.small_models import save_small

import bertie

pytestmark = pytest.mark.browser

TABS = [
    "fill-mask", "next-sentence", "classification", "entities", "questions", "endings", "ranking",
    "similarity", "tokens", "attention",
]  # fmt: skip
# What to look at the page with.
WINDOWS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True},
}
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script> cat"


def link(url, tab, **values):
    """Return the address of a tab with its model and texts."""
    return f"{url}#{urlencode({'tab': tab, **values})}"


def choose_tab(page, tab):
    """Choose a tab by keyboard, as a person without a mouse does."""
    page.locator("[role=tab][aria-selected=true]").focus()
    page.keyboard.press("Home")
    for _ in TABS:
        if page.evaluate("document.activeElement.id") == f"tab-{tab}":
            return
        page.keyboard.press("ArrowRight")
    raise AssertionError(f"no tab {tab}")


def results(page, tab):
    """Wait for the results of a tab, and return their locator."""
    page.wait_for_selector(f"#panel-{tab} .results:not([aria-busy]) > *")
    return page.locator(f"#panel-{tab} .results")


def bars(page, tab):
    """Return the names and the values of the bars of a tab."""
    found = results(page, tab)
    return list(
        zip(found.locator(".name").all_inner_texts(), found.locator(".value").all_inner_texts(), strict=True)
    )


def fits(page):
    """Return whether the page is as wide as its window. On a phone, `innerWidth` would grow with the page."""
    return page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def percent(share):
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


@pytest.mark.parametrize("window", WINDOWS)
def test_every_tab_answers_and_is_accessible(open_page, url, window):
    """Keyboard only; no tab is wider than the window; axe finds nothing; screenshots are left."""
    page = open_page(url, **WINDOWS[window])
    page.wait_for_selector("[role=tab]")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for tab in TABS:
        choose_tab(page, tab)
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement.tagName") != "TEXTAREA":
            page.keyboard.press("Tab")
        page.keyboard.press("Control+Enter")
        found = results(page, tab)
        assert found.inner_text().strip()
        assert found.locator(".error").count() == 0, found.inner_text()
        assert fits(page), tab
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{tab}-{window}.png", full_page=True)
        violations = page.evaluate("axe.run()")["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations] == [], tab


LONG_WORD = "cat" * 80


@pytest.mark.parametrize(
    ("tab", "values"),
    [
        ("fill-mask", {"text": f"{LONG_WORD} [MASK]"}),
        ("entities", {"text": LONG_WORD}),
        ("questions", {"question": LONG_WORD, "context": LONG_WORD}),
        ("ranking", {"query": "cat", "texts": LONG_WORD}),
        ("similarity", {"texts": "\n".join([LONG_WORD, *"abcdefghijklmno"])}),
        ("tokens", {"text": LONG_WORD}),
    ],
)
def test_long_words_and_many_texts_fit_a_phone(open_page, url, tab, values):
    page = open_page(link(url, tab, **values), **WINDOWS["phone"])
    results(page, tab)
    assert fits(page)
    for heading in page.locator(f"#panel-{tab} th[scope=row]").all():  # no text over the cells beside it
        assert heading.evaluate("element => element.scrollWidth <= element.clientWidth")


def test_arabic_is_written_from_right_to_left(open_page, url):
    """Also where each word is a button, and where the names of classes stand between the words."""
    text = "القط جالس على السجادة في باريس، والكلب ينام [MASK] في الحديقة."
    for tab, model, parts in (("fill-mask", "masked LM", ".word"), ("entities", "tagger", "mark")):
        page = open_page(link(url, tab, model=model, text=text))
        first, second, *_ = results(page, tab).locator(parts).all()
        assert first.bounding_box()["x"] > second.bounding_box()["x"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("नमस्ते [MASK]", ["नमस्ते"]),
        ("cafe\u0301 [MASK]", ["cafe\u0301"]),
        ("我爱北京 [MASK]", ["我", "爱", "北", "京"]),  # BERT's tokenizer has a token for each
    ],
)
def test_a_click_masks_a_whole_word(open_page, url, text, words):
    page = open_page(link(url, "fill-mask", text=text))
    buttons = results(page, "fill-mask").locator(".word")
    assert buttons.all_inner_texts() == words
    buttons.first.click()
    assert page.input_value("#fill-mask-text") == text.replace(words[0], "[MASK]", 1)


def test_tabs_are_those_of_the_models(open_page, models):
    with serving(models["encoder"], models["tagger"]) as url:
        page = open_page(url)
        page.wait_for_selector("[role=tab]")
        titles = page.locator("[role=tab]").all_inner_texts()
    assert titles == ["Entities", "Ranking", "Similarity", "Tokens", "Attention"]


class TestAnswers:
    """The page shows what the `Predictor` returns."""

    def test_fill_mask_continues_with_a_click(self, open_page, url, models):
        model = bertie.load(models["masked LM"])
        text = "the [MASK] sat on a [MASK] ."
        page = open_page(link(url, "fill-mask", model="masked LM", text=text))
        first, second = model.fill_mask(text, 8)
        wanted = [(each.token_str, percent(each.score)) for each in (*first, *second)]
        assert bars(page, "fill-mask") == wanted
        lists = page.locator("#panel-fill-mask .bars")
        lists.nth(0).locator("button").nth(1).click()
        lists.nth(1).wait_for(state="detached")
        assert page.input_value("#fill-mask-text") == first[1].sequence
        (only,) = model.fill_mask(first[1].sequence, 8)
        assert bars(page, "fill-mask") == [(each.token_str, percent(each.score)) for each in only]
        word = next(i for i, each in enumerate(only) if each.token_str != "[MASK]")
        lists.nth(0).locator("button").nth(word).click()
        lists.nth(0).wait_for(state="detached")
        assert page.input_value("#fill-mask-text") == only[word].sequence
        page.get_by_role("button", name="Mask sat").click()
        lists.nth(0).wait_for()
        assert page.input_value("#fill-mask-text") == only[word].sequence.replace("sat", "[MASK]")

    def test_next_sentence(self, open_page, url, models):
        pair = {"text": "the cat", "pair": "sat on a mat"}
        share = bertie.load(models["next sentence"]).next_sentence(*pair.values())
        page = open_page(link(url, "next-sentence", model="next sentence", **pair))
        assert dict(bars(page, "next-sentence")) == {
            "follows": percent(share),
            "comes from elsewhere": percent(1 - share),
        }

    @pytest.mark.parametrize("pair", ["", "sat on a mat"])
    def test_classification(self, open_page, url, models, pair):
        model = bertie.load(models["classifier"])
        labels = model.classify("the cat", pair or None)
        page = open_page(link(url, "classification", model="classifier", text="the cat", pair=pair))
        assert bars(page, "classification") == [(each.label, percent(each.score)) for each in labels]

    def test_the_form_asks_for_a_second_text_if_the_model_reads_pairs(self, open_page, models, tmp_path):
        pairs = save_small(tmp_path / "pairs", "classifier", input_columns={"text": "a", "pair": "b"})
        singles = save_small(tmp_path / "singles", "classifier", input_columns={"text": "a"})
        arguments = [f"pairs={pairs}", f"singles={singles}", models["classifier"]]
        with serving(*arguments) as url:
            page = open_page(link(url, "classification"))
            page.wait_for_selector("[role=tab]")
            field = page.locator("#classification-pair")
            optional = page.locator("#panel-classification .optional")
            assert (field.is_visible(), optional.is_visible()) == (True, False)
            page.click("#panel-classification .run")
            first = bars(page, "classification")
            assert len(first) == 3
            text = page.input_value("#classification-text")
            page.select_option("#classification-model", "singles")
            assert bars(page, "classification") == [
                (each.label, percent(each.score)) for each in bertie.load(singles).classify(text)
            ]
            assert (field.is_visible(), optional.is_visible()) == (False, False)
            page.select_option("#classification-model", "classifier")
            assert (field.is_visible(), optional.is_visible()) == (True, True)
            page = open_page(link(url, "classification", model="pairs", text="the cat"))
            field = page.locator("#classification-pair")
            assert len(bars(page, "classification")) == 3
            field.fill("")
            page.click("#panel-classification .run")
            assert field.evaluate("field => field.validity.valueMissing")

    def test_regression_is_a_number(self, open_page, url, models):
        number = bertie.load(models["regression"]).regress("the cat")
        page = open_page(link(url, "classification", model="regression", text="the cat"))
        assert results(page, "classification").inner_text() == f"{number:.3f}".replace("-", "−")

    def test_entities_are_highlighted(self, open_page, url, models):
        """Also behind characters that JavaScript counts as two."""
        text = "😀😀 cats sat in Paris, on a mat"
        entities = bertie.load(models["tagger"]).tag(text)
        assert entities
        page = open_page(link(url, "entities", model="tagger", text=text))
        marks = results(page, "entities").locator("mark").all_inner_texts()
        assert [mark.strip() for mark in marks] == [f"{each.text} {each.label}" for each in entities]

    def test_the_answer_is_highlighted_in_the_passage(self, open_page, url, models):
        question, context = "who?", "😀 the cat sat on a mat in Paris"
        answers = bertie.load(models["squad-v1"]).answer(question, context, 5)
        page = open_page(link(url, "questions", model="squad-v1", question=question, context=context))
        assert bars(page, "questions") == [(each.text, percent(each.score)) for each in answers]
        mark = results(page, "questions").locator("mark")
        assert mark.inner_text() == answers[0].text
        page.locator("#panel-questions .bars button").nth(2).click()
        assert mark.inner_text() == answers[2].text

    def test_endings(self, open_page, url, models):
        endings = ["sat", "on a mat", "paris"]
        chosen = bertie.load(models["choices"]).choose("the cat", endings)
        page = open_page(link(url, "endings", model="choices", context="the cat", endings="\n".join(endings)))
        assert bars(page, "endings") == [(each.ending, percent(each.score)) for each in chosen]

    def test_ranking_and_similarity(self, open_page, url, models):
        texts = ["the cat sat", "paris", "a mat"]
        query, *vectors = bertie.load(models["encoder"]).embed(["the cat", *texts], normalize=True)
        cosines = np.stack(vectors) @ query
        page = open_page(link(url, "ranking", model="encoder", query="the cat", texts="\n".join(texts)))
        order = np.argsort(-cosines)
        assert [name for name, _ in bars(page, "ranking")] == [texts[i] for i in order]
        page = open_page(link(url, "similarity", model="encoder", texts="\n".join(texts)))
        cells = results(page, "similarity").locator("td.heat").all_inner_texts()
        wanted = (np.stack(vectors) @ np.stack(vectors).T).ravel()
        assert [float(cell.replace("−", "-")) for cell in cells] == pytest.approx(wanted, abs=0.0051)

    def test_tokens_have_ids_and_offsets(self, open_page, url, models):
        text = "😀 the catting"
        tokenizer = bertie.load(models["encoder"]).tokenizer
        encoded = tokenizer.encode(text)
        page = open_page(link(url, "tokens", model="encoder", text=text))
        rows = results(page, "tokens").locator("tbody tr").all()
        assert [row.locator("td").nth(2).inner_text() for row in rows] == [str(i) for i in encoded.input_ids]
        cells = rows[2].locator("td").all_inner_texts()
        start, end = encoded.offsets[2]
        assert cells == ["2", "the", str(encoded.input_ids[2]), f"{start}–{end}", "the"]

    def test_attention_shows_a_head_and_links_to_it(self, open_page, url):
        page = open_page(
            link(url, "attention", model="encoder", text="the cat sat, the mat", layer=2, head=1)
        )
        found = results(page, "attention")
        assert "Layer 2, head 1" in found.inner_text()
        assert found.locator(".heads canvas").count() == 4
        found.get_by_role("button", name="Layer 2, head 1", exact=True).focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert "Layer 1, head 2" in found.inner_text()
        address = dict(parse_qsl(page.url.split("#")[1]))
        assert (address["layer"], address["head"]) == ("1", "2")
        found.locator(".from button").nth(1).click()
        shares = [
            float(s.split("\N{NO-BREAK SPACE}")[0]) for s in found.locator(".share").all_inner_texts() if s
        ]
        assert 0 < sum(shares) <= 100.5


def test_patterns_are_found_in_heads_that_have_them(open_page, url):
    """A head for each pattern, one that looks everywhere alike, and one just below the threshold."""
    tokens = ["[CLS]", "the", "cat", "sat", "the", "[SEP]"]
    size = len(tokens)
    heads = {
        "next token": np.eye(size, k=1),
        "previous token": np.eye(size, k=-1),
        "[SEP]": np.zeros((size, size)),
    }
    heads["[SEP]"][:, 5] = 1
    heads["same word elsewhere"] = np.zeros((size, size))
    heads["same word elsewhere"][1, 4] = heads["same word elsewhere"][4, 1] = 1
    weak = np.eye(size, k=1) / 2
    layer = [*heads.values(), np.full((size, size), 1 / size), weak]
    measured = open_page(url).evaluate(
        """async ([tokens, layer]) => {
          const { measurePatterns } = await import(new URL("page/patterns.js", document.baseURI));
          return measurePatterns(tokens, [layer]).map(({ pattern, heads }) =>
            [pattern.name, heads.filter((head) => head.found).map((head) => head.head), heads[0].weight]);
        }""",
        [tokens, [head.tolist() for head in layer]],
    )
    assert measured == [[name, [index], 1] for index, name in enumerate(heads)]


def test_an_element_can_have_more_children_than_a_call_arguments(open_page, url):
    """The tab *Tokens* has a row for each token of a long text."""
    count = open_page(url).evaluate(
        """async () => {
          const { make } = await import(new URL("page/elements.js", document.baseURI));
          return make("p", {}, Array(300000).fill("a")).childNodes.length;
        }"""
    )
    assert count == 300_000


def test_markup_in_texts_stays_text(open_page, url):
    fields = {
        "fill-mask": {"text": f"{MARKUP} [MASK]"},
        "next-sentence": {"text": MARKUP, "pair": MARKUP},
        "classification": {"text": MARKUP},
        "entities": {"text": MARKUP},
        "questions": {"question": MARKUP, "context": MARKUP},
        "endings": {"context": MARKUP, "endings": MARKUP},
        "ranking": {"query": MARKUP, "texts": MARKUP},
        "similarity": {"texts": f"{MARKUP}\n{MARKUP}"},
        "tokens": {"text": MARKUP},
        "attention": {"text": MARKUP},
    }
    assert list(fields) == TABS
    for tab, values in fields.items():
        page = open_page(link(url, tab, **values))
        results(page, tab)
        assert page.locator("main img, main script").count() == 0
        page.context.close()
    page = open_page(link(url, MARKUP, model=MARKUP))
    page.get_by_text(MARKUP).wait_for()
    assert page.locator("main img, main script").count() == 0


def test_markup_in_names_and_labels_stays_text(open_page, tmp_path):
    model = save_small(tmp_path, "classifier", labels=("<b>bad</b>", "fair", "good"))
    with serving(model.rename(tmp_path / "<i>model")) as url:
        page = open_page(link(url, "classification", text="the cat"))
        assert "<b>bad</b>" in dict(bars(page, "classification"))
        assert page.locator("b, i").count() == 0
        assert "<i>model" in page.locator("#served").inner_text()


def test_an_error_of_the_server_is_shown_as_written(open_page, url):
    page = open_page(link(url, "fill-mask", text="no mask here"), expected="422")
    alert = results(page, "fill-mask").get_by_role("alert").inner_text()
    assert alert.startswith("inputs.0: no [MASK] in 'no mask here'")


def test_a_stopped_server_is_reported(open_page, models):
    with serving(models["encoder"]) as url:
        page = open_page(url, expected="ERR_CONNECTION_REFUSED")
        page.wait_for_selector("[role=tab]")
    page.click("#panel-ranking .run")
    assert results(page, "ranking").inner_text() == "The server does not answer. Is it still running?"


def test_a_slow_answer_shows_that_it_is_computed(open_page, url):
    page = open_page(url)
    page.wait_for_selector("[role=tab]")
    waiting = []
    page.route("**/predict", lambda route: waiting.append(route))
    page.click("#panel-fill-mask .run")
    status = page.locator("#panel-fill-mask [role=status]")
    status.get_by_text("1 s").wait_for()
    assert status.inner_text().startswith("Computing…")
    waiting[0].continue_()
    results(page, "fill-mask")
    assert status.inner_text() == "1 masked word"


def test_an_answer_in_a_hidden_tab_leaves_the_address_alone(open_page, url):
    page = open_page(url)
    waiting = []
    page.route("**/attention", lambda route: waiting.append(route))
    page.click("#tab-attention")
    with page.expect_request("**/attention"):
        page.click("#panel-attention .run")
    page.click("#tab-tokens")
    waiting[0].continue_()
    page.locator("#panel-attention .flow").wait_for(state="attached")
    assert "tab=tokens" in page.url
    page.click("#tab-attention")
    assert re.search(r"tab=attention&.*&layer=\d&head=\d$", page.url)


@pytest.mark.parametrize(("wrong", "key"), [("wrong", "sesame"), ("mauvaise clé 🔑", "sésame 🔑")])
def test_the_page_asks_for_the_key(open_page, models, wrong, key):
    """`fetch` sends only headers of Latin-1 characters, so the page sends the bytes of UTF-8."""
    with serving(models["encoder"], "--api-key", key) as url:
        page = open_page(link(url, "tokens", text="the cat"), expected="401")
        field = page.get_by_label("API key")
        field.wait_for()
        field.fill(wrong)
        with page.expect_response("**/info") as response:
            page.keyboard.press("Enter")
        assert response.value.status == 401
        field.wait_for()
        field.fill(key)
        page.keyboard.press("Enter")
        results(page, "tokens")
        assert not field.is_visible()
        page.reload()
        results(page, "tokens")
        assert page.evaluate("localStorage.length") == 0
        page.close()  # it may have requests left when the server stops


@pytest.mark.parametrize("character", ["\0", "\x01", "\x7f"])
def test_a_key_with_a_control_character_is_refused(open_page, models, character):
    """`fetch` sends no NUL, and the server answers a header with another one as invalid HTTP."""
    with serving(models["encoder"], "--api-key", "sesame") as url:
        page = open_page(link(url, "tokens", text="the cat"), expected="401")
        field = page.get_by_label("API key")
        field.fill(f"ses{character}ame")
        page.keyboard.press("Enter")
        page.get_by_text("This key has a control character, which no key has. Copy the key again.").wait_for()
        assert field.is_visible()
        field.fill("sesame")
        page.keyboard.press("Enter")
        results(page, "tokens")
        page.close()  # it may have requests left when the server stops


def test_a_link_restores_tab_model_and_texts(open_page, url):
    page = open_page(url)
    page.wait_for_selector("[role=tab]")
    page.click("#tab-classification")
    page.select_option("#classification-model", "multi-label")
    page.fill("#classification-text", "the cat & a mat = 100 %\nparis")
    page.click("#panel-classification .run")
    wanted = bars(page, "classification")
    other = open_page(page.url)
    assert bars(other, "classification") == wanted
    assert other.input_value("#classification-model") == "multi-label"
    assert other.input_value("#classification-text") == "the cat & a mat = 100 %\nparis"
    page.click("#tab-tokens")
    page.go_back()
    page.locator("#tab-classification[aria-selected=true]").wait_for()


def test_a_link_to_an_unknown_model_says_so(open_page, url):
    page = open_page(link(url, "tokens", model="gone"))
    message = page.get_by_text("This link names the model gone, which this server does not have.")
    message.wait_for()
    assert message.is_visible()
    page = open_page(link(url, "translation"))
    message = page.get_by_text(re.compile("No served model supports the tab"))
    message.wait_for()
    assert message.is_visible()


def test_the_list_of_routes_opens(open_page, url):
    page = open_page(url)
    page.get_by_role("link", name="All routes of this server").click()
    page.wait_for_url("**/docs")
    page.get_by_text("/next-sentence").first.wait_for()
    listed = page.locator("body").inner_text()
    assert all(route in listed for route in ("/embed", "/predict", "/rerank", "/v1/embeddings", "/attention"))


@pytest.mark.parametrize("window", WINDOWS)
def test_the_list_of_routes_fits_and_is_accessible(open_page, url, window):
    """Folded, and with the fields, the body and the answer of every route."""
    page = open_page(url, **WINDOWS[window])
    page.goto(f"{url}docs")
    page.locator("details").first.wait_for()
    assert fits(page)
    page.evaluate("document.querySelectorAll('details').forEach(route => route.open = true)")
    page.evaluate("document.querySelector('[id=\"post/embed\"] button').click()")
    page.locator("pre", has_text=re.compile(r"^200")).wait_for()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"docs-{window}.png", full_page=True)
    assert fits(page)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    violations = page.evaluate("axe.run()")["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in violations] == []


def test_the_policy_of_the_server_allows_the_page(url):
    """The tests above find violations only if there is a policy."""
    with urlopen(url) as response:
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert "unsafe" not in response.headers["Content-Security-Policy"]
