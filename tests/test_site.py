"""The documentation as a site: it builds without a warning, its links lead somewhere, and it asks no other host."""

import dataclasses
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
from cappronet.recipe import Recipe

yaml = pytest.importorskip("yaml", reason="zensical, which builds the site, is not installed: pip install '.[dev]'")
for needed in ("zensical", "mkdocstrings_handlers.python"):
    pytest.importorskip(needed, reason="what builds the site is not installed: pip install '.[dev]'")

pytestmark = pytest.mark.xdist_group("site")  # one process builds what all of them read
ROOT = Path(__file__).parent.parent
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
        self.loads += [values[name] for name in ("src", "poster", "data") if name in values]

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
    (folder / "src").symlink_to(ROOT / "src")
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
            place = site / rest.lstrip("/") if name == "404.html" else (site / name).parent / rest
            target = place.resolve() if rest else site / name
            assert target.is_file(), (name, address)
            found = pages.get(target.relative_to(site).as_posix())
            if found is not None:
                assert unquote(parts.fragment) in found.anchors, (name, address)
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


def test_the_settings_are_those_of_a_recipe():
    def shown(value):
        return "none" if value == () else str(value).lower() if isinstance(value, bool) else str(value)

    rows = [f"| `{f.name}` | `{shown(f.default)}` | {f.metadata['help']} |" for f in dataclasses.fields(Recipe)]
    page = (ROOT / "docs" / "api" / "training.md").read_text()
    assert re.findall(r"^\| `.*\|$", page, re.MULTILINE) == rows


def test_files_that_pages_name_are_there():
    named = {
        path
        for page in PAGES
        for path in re.findall(r"`((?:examples|recipes|results|src|tests)/[^`]*)`", (ROOT / "docs" / page).read_text())
    }
    assert "examples/own_loop.py" in named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_first_page_has_the_table_of_the_readme():
    tables = [
        re.search(r"<!-- comparison -->\n(.*?)<!-- /comparison -->", (ROOT / page).read_text(), re.DOTALL)[1]
        for page in ("README.md", "docs/index.md")
    ]
    assert tables[0] == tables[1]


def test_commands_on_several_lines_and_behind_a_launcher_exist():
    from cappronet.cli import app

    checked = 0
    for page in PAGES:
        text = (ROOT / "docs" / page).read_text().replace("\\\n", " ")
        commands = re.findall(r"^(?:srun .*?|torchrun .*-- +)?cappronet (\w+)(.*?)(?: #|$)", text, re.MULTILINE)
        for name, rest in commands:
            options = {option for argument in app[name].assemble_argument_collection() for option in argument.names}
            for option in re.findall(r"(?<= )--?[a-z][\w-]*", rest):
                assert option in options, (page, name, option)
            checked += 1
    assert checked > 20


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
