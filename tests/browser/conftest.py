"""Headless Chromium, and a server with a small model of every kind."""

import re
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.commands.serving import serving as start_server
from tests.inference.small_models import MODELS, save_small

AXE = Path(__file__).parent / "axe" / "axe.min.js"
SCREENSHOTS = Path(__file__).parents[2] / "build" / "page"


@pytest.fixture(scope="session")
def chromium():
    """A headless browser: Debian's, since playwright's own is a download."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        # Chromium's sandbox refuses to run as root, as in containers.
        browser = started.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@contextmanager
def serving(*arguments):
    """Run `bertie serve`; yield the address of its page."""
    with start_server(*arguments) as (_, port):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Return the directories of the small models by kind."""
    directory = tmp_path_factory.mktemp("models")
    return {kind: save_small(directory, kind) for kind in MODELS}


@pytest.fixture(scope="session")
def url(models):
    with serving(*models.values()) as address:
        yield address


@pytest.fixture
def open_page(chromium):
    """A function that opens an address in a new browser window; fails the test on a console error,
    on an error in a script, and on a request to another machine. `expected` allows console errors."""
    contexts, problems = [], []

    def open_page(address, expected="(?!)", **options):
        context = chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()
        origin = address.split("#")[0]

        def note_console(message):
            if message.type in ("error", "warning") and not re.search(expected, message.text):
                problems.append(message.text)

        page.on("console", note_console)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on(
            "request",
            lambda request: problems.append(request.url) if not request.url.startswith(origin) else None,
        )
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []
