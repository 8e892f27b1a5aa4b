"""The page in a real browser: it shows what the table holds, and makes no network requests."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from explorer.samples import HOSTILE, random_table, trained

from cappronet.data.datasets import load_dataset
from cappronet.explorer import capsule_table, write_page
from cappronet.training.recipe import Recipe

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]  # fmt: skip
NAMES = (HOSTILE, "<img src=x onerror='window.hacked = 1'>", "two & three", *map(str, range(3, 10)))

pytestmark = pytest.mark.slow  # a browser opens the page


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome is installed to open the page with: apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def explored(tmp_path_factory):
    """A run on digits whose classes have hostile names, its table, its page."""
    folder = tmp_path_factory.mktemp("explored")
    digits = load_dataset("digits")
    parts = {"train": digits.train, "test": digits.test}
    arrays = {f"x_{name}": part.pixels[:, 0].numpy() for name, part in parts.items()}
    arrays |= {f"y_{name}": part.labels.numpy() for name, part in parts.items()}
    np.savez(folder / "digits.npz", classes=np.array(NAMES), **arrays)
    recipe = Recipe(data=str(folder / "digits.npz"), backbone="pixels", capsule_dim=4, epochs=2, train_size=400)
    run = trained(folder / "<b>run", recipe)
    table = capsule_table(run)
    write_page(table, run, folder / "out.html")
    return SimpleNamespace(run=run, table=table, path=folder / "out.html")


class Reader:
    """An open page; records its console output and the addresses it requests."""

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.page = self.context.new_page()
        self.messages, self.requests, self.path = [], [], path
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.emulate_media(reduced_motion="reduce")
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=120_000)

    def evaluate(self, code, *arguments):
        return self.page.evaluate(code, *arguments)

    def texts(self, selector):
        return self.page.locator(selector).all_inner_texts()

    def check(self):
        """No error, no request, no markup that came from a name."""
        assert self.messages == []
        assert [url for url in self.requests if url != self.path.as_uri()] == []
        assert self.evaluate("typeof window.hacked") == "undefined"


@pytest.fixture
def read(browser):
    readers = []

    def opened(path, **options):
        readers.append(Reader(browser, path, **options))
        return readers[-1]

    yield opened
    for reader in readers:
        reader.check()
        reader.context.close()


def shown_plane(table, label):
    """Where the images of a plane must stand: on the first two principal directions."""
    directions, shares = table.principal_directions(label)
    return table.coordinates(label) @ directions[:2].T, shares


def most_isolated(points, count):
    """The images that stand farthest from any other."""
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1) + 1e9 * np.eye(len(points))
    return np.argsort(-apart.min(1))[:count]


def pixels_of(reader, selector):
    """The colours of a thumbnail `(h, w, 3)`."""
    size = reader.evaluate("(s) => { const c = document.querySelector(s); return [c.height, c.width] }", selector)
    values = reader.evaluate(
        """(s) => { const c = document.querySelector(s);
                    return [...c.getContext("2d").getImageData(0, 0, c.width, c.height).data] }""",
        selector,
    )
    return np.array(values).reshape(*size, 4)[..., :3]


def digits_of(text):
    """A number as the page writes it."""
    return float(text.replace("\N{MINUS SIGN}", "-"))


def test_hovering_a_point_shows_the_right_image_and_the_right_numbers(read, explored):
    reader, table = read(explored.path), explored.table
    for label in (5, 1):
        reader.page.keyboard.press("Escape")
        reader.page.select_option("#class", str(label))
        reader.page.locator("#plane").scroll_into_view_if_needed()
        points, shares = shown_plane(table, label)
        assert np.allclose(reader.evaluate("[...plane.x]"), points[:, 0], atol=2e-3 * np.abs(points).max())
        assert np.allclose(reader.evaluate("[...plane.y]"), points[:, 1], atol=2e-3 * np.abs(points).max())
        assert f"keep {100 * shares[:2].sum():.1f} % of the squared length" in reader.texts("#plane-share")[0]
        for image in most_isolated(points, 3).tolist():
            reader.page.mouse.move(*reader.evaluate("(index) => explorer.locate(index)", int(table.index[image])))
            card = reader.page.locator("#card")
            assert card.is_visible()
            assert card.get_attribute("data-index") == str(table.index[image])
            assert reader.texts("#card .card-title") == [f"image {table.index[image]}"]
            assert reader.texts("#card .true") == [NAMES[table.labels[image]]]
            assert reader.texts("#card .predicted") == [NAMES[table.predictions[image]]]
            rows = reader.page.locator("#card .card-length")
            named = [int(rows.nth(k).get_attribute("data-class")) for k in range(rows.count())]
            assert named[:4] == np.argsort(-table.lengths[image])[:4].tolist()
            assert {label, int(table.labels[image])} <= set(named)
            assert reader.texts("#card .name") == [NAMES[other] for other in named]
            values = [digits_of(text) for text in reader.texts("#card .value")]
            assert np.allclose(values, table.lengths[image, named], rtol=1e-3, atol=1e-3)
            assert (pixels_of(reader, "#card canvas") == table.thumbnails[image]).all()
        reader.page.mouse.down()
        reader.page.mouse.up()
        assert reader.texts("#image-title") == [f"Image {table.index[image]}"]
        assert not reader.page.locator("#card").is_visible()  # the panel shows the image now


def test_the_card_covers_neither_its_mark_nor_what_is_scrolled_to(read, explored):
    reader = read(explored.path)
    reader.page.locator("#plane").scroll_into_view_if_needed()
    plane, card = reader.page.locator("#plane").bounding_box(), reader.page.locator("#card")
    for index in explored.table.index[::60].tolist():
        x, y = reader.evaluate("(index) => explorer.locate(index)", index)
        reader.page.mouse.move(x, y)
        box = card.bounding_box()
        assert not (box["x"] <= x <= box["x"] + box["width"] and box["y"] <= y <= box["y"] + box["height"])
        assert plane["x"] <= box["x"] <= plane["x"] + plane["width"] - box["width"]
    reader.evaluate("scrollBy(0, 150)")
    card.wait_for(state="hidden")


def test_names_are_text_everywhere(read, explored):
    reader = read(explored.path)
    reader.page.select_option("#class", "0")
    assert reader.texts("#planes-title") == [f"The capsule plane of {HOSTILE}"]
    assert HOSTILE in reader.texts("#confusion th[scope=row]")[0]
    assert reader.texts("#title") == ["<b>run"]
    assert reader.evaluate("document.querySelectorAll('img, #title b, script').length") == reader.evaluate(
        "document.querySelectorAll('body > script').length"
    )


def test_a_cell_of_the_confusion_matrix_shows_its_images(read, explored):
    reader, table = read(explored.path), explored.table
    wrong = np.flatnonzero(table.labels != table.predictions)
    true, predicted = int(table.labels[wrong[0]]), int(table.predictions[wrong[0]])
    expected = np.flatnonzero((table.labels == true) & (table.predictions == predicted))
    cell = reader.page.locator(f"#confusion button[data-row='{true}'][data-column='{predicted}']")
    assert cell.inner_text() == str(len(expected))
    cell.click()
    shown = reader.page.locator("#picked-images button.image")
    assert {int(shown.nth(k).get_attribute("data-index")) for k in range(shown.count())} == set(table.index[expected])
    plural = "image" if len(expected) == 1 else "images"
    assert reader.texts("#picked-title") == [f"{NAMES[true]} predicted as {NAMES[predicted]}: {len(expected)} {plural}"]
    shown.first.click()
    assert reader.page.locator("#image-panel").get_attribute("data-index") == shown.first.get_attribute("data-index")


def test_a_pinned_image_tells_its_lengths_residual_and_neighbours(read, explored):
    reader, table = read(explored.path), explored.table
    image = int(np.flatnonzero(table.labels != table.predictions)[0])
    label = int(table.predictions[image])
    reader.page.select_option("#class", str(label))
    reader.evaluate("(image) => explorer.pin(image)", image)
    bars = reader.page.locator("#image-content .bar-row")
    assert bars.count() == 10
    for k, other in enumerate(np.argsort(-table.lengths[image])):
        assert bars.nth(k).get_attribute("data-class") == str(other)
        shown = digits_of(bars.nth(k).locator(".value").inner_text())
        assert shown == pytest.approx(table.lengths[image, other], rel=1e-3, abs=1e-3)
    assert digits_of(reader.texts("#image-content .residual")[0]) == pytest.approx(table.residuals[image], abs=1e-3)
    assert (pixels_of(reader, "#image-content canvas") == table.thumbnails[image]).all()

    y = table.coordinates(label).astype(np.float64)
    sizes = np.linalg.norm(y, axis=1)
    cosines = np.where(2 * sizes >= sizes[image], y @ y[image] / (sizes * sizes[image]), -1)
    cosines[image] = -1
    shown = reader.page.locator("#image-content .neighbours button.image")
    neighbours = [int(shown.nth(k).get_attribute("data-image")) for k in range(shown.count())]
    assert len(neighbours) == 12
    assert np.allclose(cosines[neighbours], np.sort(cosines)[::-1][:12], atol=1e-4)

    reader.page.keyboard.press("Escape")
    others = table.lengths.copy()
    others[np.arange(len(table)), table.labels] = -1
    margins = others.max(1) - table.lengths[np.arange(len(table)), table.labels]
    assert reader.texts("#image-why") == ["Most doubtful image"]
    shown = int(reader.page.locator("#image-panel").get_attribute("data-index"))
    assert margins[table.index == shown] == pytest.approx(margins.max(), abs=1e-3)


def test_length_and_orientation(read, explored):
    reader, table = read(explored.path), explored.table
    reader.page.select_option("#class", "4")
    points, _ = shown_plane(table, 4)
    angles = np.degrees(np.arctan2(points[:, 1], points[:, 0]))
    own = np.flatnonzero(table.labels == 4)
    around = [int(b.get_attribute("data-image")) for b in reader.page.locator("#around button.image").all()]
    assert set(around) == set(own)
    assert (np.diff(angles[around]) >= -0.1).all()
    assert f"median {np.median(table.lengths[own, 4]):.3f}"[:-1] in reader.texts("#histogram-note")[0]

    reader.evaluate("setOrientation(30)")
    near = np.abs((angles - 30 + 180) % 360 - 180)
    along = [int(b.get_attribute("data-image")) for b in reader.page.locator("#along button.image").all()]
    assert (near[along] <= 15.1).all()
    assert (np.diff(table.lengths[along, 4]) <= 1e-3).all()
    assert reader.texts("#along-note")[0].startswith(f"{(near <= 15).sum()} image")


def test_subspaces_and_suspicious_images(read, explored):
    reader, table = read(explored.path), explored.table
    upper = [(table.angles[k, j, 0], k, j) for k in range(10) for j in range(k + 1, 10)]
    angle, one, other = min(upper)
    row = reader.page.locator("#closest tbody tr").first
    assert row.locator("button").inner_text() == f"{NAMES[one]} · {NAMES[other]}"
    assert row.locator(".value").first.inner_text() == f"{angle:.1f}°"
    assert (
        reader.page.locator(f"#angles button[data-row='{one}'][data-column='{other}']").inner_text() == f"{angle:.0f}"
    )
    row.locator("button").click()
    assert reader.texts("#planes-title") == [f"The capsule plane of {NAMES[one]}"]
    assert reader.evaluate("plane.partner.label") == other
    assert reader.texts("#conditions-verdict")[0].startswith("Yes, in every class")
    worst = int(table.conditions.argmax())
    assert reader.texts("#conditions .name")[0] == NAMES[worst]
    assert digits_of(reader.texts("#conditions .value")[0]) == pytest.approx(table.conditions[worst], rel=1e-3)

    every = np.arange(len(table))
    own = table.lengths[every, table.labels]
    medians = np.array([np.median(own[table.labels == label]) for label in range(10)])
    others = table.lengths.copy()
    others[every, table.labels] = -1
    for name, scores in {
        "short": own / medians[table.labels],
        "long": own - others.max(1),
        "far": -table.residuals.astype(np.float64),
    }.items():
        shown = reader.page.locator(f"#suspicious-{name} button.image")
        images = [int(shown.nth(k).get_attribute("data-image")) for k in range(24)]
        assert np.allclose(scores[images], np.sort(scores)[:24], atol=2e-3)


def test_everything_goes_by_keyboard(read, explored):
    reader, table = read(explored.path), explored.table
    press = reader.page.keyboard.press
    reader.page.locator("#class").focus()
    label = reader.evaluate("state.label")
    press("ArrowDown")
    assert reader.evaluate("state.label") == label + 1
    reader.page.locator("#plane").focus()
    points, _ = shown_plane(table, label + 1)
    order = np.argsort(np.arctan2(points[:, 1], points[:, 0]))
    visited = []
    for _ in range(3):
        press("ArrowRight")
        assert reader.page.locator("#card").is_visible()
        visited.append(int(reader.page.locator("#card").get_attribute("data-image")))
    assert visited == order[:3].tolist()
    press("ArrowLeft")
    press("Enter")
    assert reader.page.locator("#image-panel").get_attribute("data-index") == str(table.index[visited[1]])
    before = reader.evaluate("({...plane.view})")
    press("+")
    assert reader.evaluate("plane.view.scale") == pytest.approx(1.4 * before["scale"])
    press("Shift+ArrowRight")
    assert reader.evaluate("plane.view.x") > before["x"]
    press("0")
    assert reader.evaluate("plane.view.scale") == pytest.approx(before["scale"])
    press("Escape")
    assert reader.evaluate("state.pinned") is None

    cell = reader.page.locator("#confusion button[tabindex='0']")
    cell.focus()
    press("ArrowRight")
    press("ArrowDown")
    focused = reader.evaluate("[document.activeElement.dataset.row, document.activeElement.dataset.column]")
    assert focused == ["1", "1"]
    press("Enter")
    assert reader.page.locator("#picked").is_visible()


def test_zoom_and_pan_with_the_mouse(read, explored):
    reader = read(explored.path)
    reader.page.locator("#plane").scroll_into_view_if_needed()
    box = reader.page.locator("#plane").bounding_box()
    corner = (box["x"] + 20, box["y"] + 60)
    before = reader.evaluate("({...plane.view})")
    reader.page.mouse.move(*corner)
    reader.page.mouse.down()
    reader.page.mouse.move(corner[0] + 50, corner[1] + 20, steps=4)
    reader.page.mouse.up()
    moved = reader.evaluate("({...plane.view})")
    assert moved["x"] == pytest.approx(before["x"] - 50 / before["scale"], rel=1e-3)
    assert moved["y"] == pytest.approx(before["y"] + 20 / before["scale"], rel=1e-3)
    reader.page.keyboard.down("Control")
    reader.page.mouse.wheel(0, -200)
    reader.page.keyboard.up("Control")
    reader.page.wait_for_function("(scale) => plane.view.scale > 1.2 * scale", arg=before["scale"])
    reader.page.click("#zoom-fit")
    assert reader.evaluate("plane.view.scale") == pytest.approx(before["scale"])
    reader.page.select_option("#axis-x", "2")
    assert reader.evaluate("plane.axes") == [2, 1]
    reader.page.select_option("#axes-kind", "coordinates")
    assert reader.evaluate("plane.kind") == "coordinates"


@pytest.mark.parametrize(("width", "scheme"), [(375, "light"), (375, "dark"), (1920, "dark")])
def test_phones_and_wide_screens_in_light_and_dark(read, explored, width, scheme):
    phone = width < 500
    reader = read(explored.path, viewport={"width": width, "height": 800}, color_scheme=scheme, is_mobile=phone)
    reader.evaluate("explorer.pin(3)")
    assert reader.evaluate("document.documentElement.scrollWidth") == width
    assert reader.page.locator("#dock").count() == phone
    assert reader.page.locator("#plane-help").is_visible() != phone  # phones have no keyboard
    assert not reader.page.locator("#plane-help-words").is_visible()  # folded
    ground = "getComputedStyle(document.body).backgroundColor"
    before = reader.evaluate(ground)
    lightness = sum(map(int, before.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (lightness < 150) == (scheme == "dark")
    reader.page.click("#theme")
    assert reader.evaluate(ground) != before


@pytest.mark.parametrize("c", [1, 2])
def test_lines_and_whole_planes(read, explored, tmp_path, c):
    table = random_table(200, 4, c, 12, d=8)
    write_page(table, explored.run, tmp_path / "out.html")
    reader = read(tmp_path / "out.html")
    reader.page.select_option("#class", "2")
    y = table.coordinates(2)
    assert np.allclose(reader.evaluate("[...plane.x]"), y[:, 0], atol=1e-3)
    if c == 2:
        assert np.allclose(reader.evaluate("[...plane.y]"), y[:, 1], atol=1e-3)
    image = int(np.abs(y[:, 0]).argmax())
    reader.page.locator("#plane").scroll_into_view_if_needed()
    reader.page.mouse.move(*reader.evaluate("(index) => explorer.locate(index)", image))
    assert reader.page.locator("#card").get_attribute("data-image") == str(image)
    reader.evaluate("explorer.pin(7)")
    assert reader.page.locator("#image-content .bar-row").count() == 4


def test_a_thousand_classes(read, explored, tmp_path):
    table = random_table(1500, 1000, 4, 8, d=16)
    write_page(table, explored.run, tmp_path / "out.html")
    reader = read(tmp_path / "out.html")
    reader.page.fill("#class-filter", "class 617")
    assert reader.texts("#planes-title") == ["The capsule plane of class 617"]
    pairs = reader.page.locator("#confused-pairs li button")
    assert pairs.count() == 20
    pairs.first.click()
    assert reader.page.locator("#picked-images button.image").count() >= 1
    assert reader.page.locator("#confusion canvas").count() == 1
    reader.evaluate("explorer.pin(3)")
    assert reader.page.locator("#image-content .bar-row").count() in (20, 21)


def test_a_page_builds_only_the_thumbnails_in_view(read, explored, tmp_path):
    """Of 2,000 images, most thumbnails are left until the reader scrolls to them."""
    write_page(random_table(2000, 10, 8, 32), explored.run, tmp_path / "out.html")
    reader = read(tmp_path / "out.html")
    assert reader.evaluate("explorer.meta.images") == 2000
    before = reader.page.locator("canvas.thumbnail").count()
    assert 0 < before < 400
    strip = reader.page.locator("#around")
    shown = strip.locator("button.image").count()
    strip.evaluate("(box) => box.scrollTo(box.scrollWidth, 0)")
    reader.page.wait_for_function("(n) => document.querySelectorAll('#around button.image').length > n", arg=shown)


@pytest.mark.parametrize(
    ("largest", "verdict"),
    [(5e4, r"Barely, in 2 of 4 classes"), (3e6, r"No, in 1 of 4 classes.*smaller --capsule-dim")],
)
def test_condition_numbers_say_what_to_do(read, explored, tmp_path, largest, verdict):
    table = random_table(40, 4, 4, 8, conditions=np.array([2.0, 1500.0, 30.0, largest]))
    write_page(table, explored.run, tmp_path / "out.html")
    assert re.match(verdict, read(tmp_path / "out.html").texts("#conditions-verdict")[0])


@pytest.mark.parametrize("clipboard", [True, False])
def test_suspicious_images_are_copied_as_a_list_of_paths(read, explored, tmp_path, clipboard):
    paths = tuple(f"test/{i % 4}/scan <b>{i}.png" for i in range(60))
    table = random_table(60, 4, 2, 8, paths=paths)
    write_page(table, explored.run, tmp_path / "out.html")
    reader = read(tmp_path / "out.html", permissions=["clipboard-read", "clipboard-write"])
    if not clipboard:  # as in a browser that refuses it to a local file, and the older command as well
        reader.evaluate("navigator.clipboard.writeText = () => Promise.reject(); document.execCommand = () => false")
    far = reader.page.locator("#suspicious-lists > div").nth(2)
    far.locator("select").select_option("10")
    far.locator("button.copy").click()
    if clipboard:
        reader.page.wait_for_selector("button.copy:text-is('Copied 10')")
        copied = reader.evaluate("navigator.clipboard.readText()")
    else:
        reader.page.wait_for_selector("#copy-dialog[open]")
        copied = reader.page.locator("#copy-text").input_value()
        reader.page.locator("#copy-dialog button").click()
        assert not reader.page.locator("#copy-dialog").is_visible()
    assert copied.split("\n") == [paths[i] for i in np.argsort(-table.residuals.astype(np.float32), kind="stable")[:10]]
    reader.evaluate("explorer.pin(7)")
    assert reader.texts("#image-title") == ["scan <b>7.png"]
    assert paths[7] in reader.texts("#image-content .path")


@pytest.mark.parametrize("texts", [True, False])
def test_feature_vectors_are_shown_by_their_text_or_their_number(read, explored, tmp_path, texts):
    words = tuple(f"sentence {i} {HOSTILE} \u05d0\u05d1" for i in range(80)) if texts else ()
    table = random_table(80, 4, 3, 8, thumbnails=None, texts=words)
    probe = tmp_path / "probe"
    shutil.copytree(explored.run, probe)
    (probe / "metrics.jsonl").unlink()
    summary = json.loads((probe / "summary.json").read_text())
    (probe / "summary.json").write_text(json.dumps(summary | {"seconds": 0.248}))
    write_page(table, probe, tmp_path / "out.html")
    reader = read(tmp_path / "out.html", viewport={"width": 375, "height": 800})
    assert "248 ms" in reader.texts("#facts dd")
    assert not reader.page.locator("#training").is_visible()
    reader.evaluate("explorer.pin(5)")
    assert reader.texts("#image-title") == ["Sample 5"]
    assert reader.texts("#image-content .image-head .excerpt") == list(words[5:6])
    first = reader.page.locator("#around button.image").first
    number = int(first.get_attribute("data-image"))
    assert first.locator(".excerpt").inner_text() == (words[number] if texts else f"sample {number}")
    assert reader.page.locator("canvas.thumbnail").count() == 0
    assert reader.evaluate("document.documentElement.scrollWidth") == 375
    assert "image" not in reader.page.locator("main").inner_text().lower()
