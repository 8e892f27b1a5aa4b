"""The documentation as a site: it builds without a warning, its links lead somewhere, and it asks no other host."""

import inspect
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import cappronet

yaml = pytest.importorskip("yaml", reason="zensical, which builds the site, is not installed: pip install '.[dev]'")
for needed in ("zensical", "mkdocstrings_handlers.python"):
    pytest.importorskip(needed, reason="what builds the site is not installed: pip install '.[dev]'")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]  # one process builds what all of them read
ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]  # fmt: skip


class Read(HTMLParser):
    """The text of a page, its anchors, where it leads, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.words, self.anchors, self.links, self.loads = [], {""}, [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values:
            self.loads.append(values["href"])
        self.loads += [values[name] for name in ("src", "srcset", "poster", "data") if name in values]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site, its pages as they are read, and what the build said. All of it is outside the clone."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    for name in ("src", "tools"):
        (folder / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    site = (folder / "site").resolve()
    return site, {path.relative_to(site).as_posix(): Read(path) for path in sorted(site.rglob("*.html"))}, said


def test_the_build_warns_of_nothing(built):
    _, pages, said = built
    assert "No issues found" in said
    assert not re.search(r"warning|error|could not", said, re.IGNORECASE), said
    assert {page.removesuffix(".md") + ".html" for page in PAGES} == pages.keys() - {"404.html"}


def test_lists_are_lists(built):
    """A list right below a line of text is one on a code host, and part of the text here."""
    site, pages, _ = built
    for name in pages:
        for paragraph in re.findall(r"<p>(.*?)</p>", (site / name).read_text(encoding="utf-8"), re.DOTALL):
            assert not re.search(r"\n(?:[-*]|\d+\.) ", paragraph), (name, paragraph)


def test_every_page_is_in_the_navigation():
    def files(entry):
        if isinstance(entry, str):
            return [entry]
        return [file for part in (entry.values() if isinstance(entry, dict) else entry) for file in files(part)]

    assert sorted(files(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])) == PAGES


def test_links_anchors_and_pictures_lead_somewhere(built):
    site, pages, _ = built
    local = 0
    for name, page in pages.items():
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            rest = unquote(parts.path)
            # 404.html is shown in place of any page, so its addresses start from the root.
            path = site / rest.lstrip("/") if name == "404.html" else (site / name).parent / rest
            target = path.resolve() if rest else site / name
            assert target.is_file(), (name, address)
            other = pages.get(target.relative_to(site).as_posix())
            if other is not None:
                assert unquote(parts.fragment) in other.anchors, (name, address)
            local += 1
    assert local > 10 * len(PAGES)


def test_pages_and_styles_load_nothing_from_elsewhere(built):
    site, pages, _ = built
    for name, page in pages.items():
        assert page.loads
        assert [address for address in page.loads if urlsplit(address).netloc] == [], name
    styles = list(site.rglob("*.css"))
    assert any(style.name == "site.css" for style in styles)
    for style in styles:
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", text), style
        for address in re.findall(r"url\(['\"]?([^'\")]+)", text):
            assert address.startswith(("data:", "#")) or (style.parent / address).is_file(), (style, address)


@pytest.mark.parametrize("name", cappronet.__all__)
def test_the_api_has_what_docstrings_say(built, name):
    page = built[1]["api/index.html"]
    assert f"cappronet.{name}" in page.anchors
    docstring = inspect.getdoc(getattr(cappronet, name))
    first = re.sub(r"\s+", " ", docstring.partition("\n\n")[0].replace("`", ""))
    assert first in page.text


def test_long_tables_are_folded_away(built):
    """As tables, not as the text between two HTML tags."""
    text = (built[0] / "reproduction.html").read_text(encoding="utf-8")
    folded = re.findall(r"<details>(.*?)</details>", text, re.DOTALL)
    assert len(folded) == 4
    assert [part.count("<table>") for part in folded] == [1] * 4
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    opening, *others = re.findall(r"<table>.*?</table>", shown, re.DOTALL)
    assert "capsules win" in opening  # a row for each condition, however many there are
    assert max(table.count("<tr>") for table in others) <= 10


def test_formulas_are_rendered(built):
    text = (built[0] / "theory.html").read_text(encoding="utf-8")
    assert text.count("<math") > 40
    assert "$" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_pictures_have_a_light_and_a_dark_version(built):
    site, pages, _ = built
    style = (site / "assets" / "site.css").read_text(encoding="utf-8")
    shown = {address for page in pages.values() for address in page.loads if address.startswith("images/")}
    light = {Path(address).stem for address in shown if not address.endswith("-dark.png")}
    assert len(light) > 5
    for name in light:
        assert f"images/{name}-dark.png" in shown, name
        for version in (name, f"{name}-dark"):
            assert f'url("../images/{version}.png")' in style, version


@pytest.mark.slow
def test_search_finds_a_name_in_a_site_that_was_opened_from_disk(built):
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome is installed to open the site with: apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    asked, said = [], []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((built[0] / "theory.html").as_uri())
        page.locator(".md-search__button").click()
        page.get_by_role("combobox").fill("replace_head")
        page.get_by_role("option").first.click()
        page.wait_for_url(re.compile(r"api/index\.html.*#cappronet\.replace_head$"))
        browser.close()
    assert said == []
    assert asked
    assert [address for address in asked if not address.startswith(("file:", "data:", "about:", "blob:"))] == []
