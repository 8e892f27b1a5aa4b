"""The page in a real browser: what it shows is what the table holds, and it asks nobody for anything."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from test_explorer import HOSTILE, made_up, trained

from cappronet.datasets import load_dataset
from cappronet.explorer import capsule_table, write_page
from cappronet.recipe import Recipe

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]  # fmt: skip
NAMES = (HOSTILE, "<img src=x onerror='window.hacked = 1'>", "two & three", *map(str, range(3, 10)))


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
    """A page that is read: everything it says on the console and every address it asks for is kept."""

    def __init__(self, browser, path, **options):
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.page = self.context.new_page()
        self.said, self.asked, self.path = [], [], path
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.emulate_media(reduced_motion="reduce")
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]", timeout=120_000)

    def evaluate(self, code, *arguments):
        return self.page.evaluate(code, *arguments)

    def texts(self, selector):
        return self.page.locator(selector).all_inner_texts()

    def check(self):
        """No error, no request, no markup that came from a name."""
        assert self.said == []
        assert [url for url in self.asked if url != self.path.as_uri()] == []
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


def lonely(points, count):
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
        reader.page.select_option("#class", str(label))
        reader.page.locator("#plane").scroll_into_view_if_needed()
        points, shares = shown_plane(table, label)
        assert np.allclose(reader.evaluate("[...plane.x]"), points[:, 0], atol=2e-3 * np.abs(points).max())
        assert np.allclose(reader.evaluate("[...plane.y]"), points[:, 1], atol=2e-3 * np.abs(points).max())
        assert f"keep {100 * shares[:2].sum():.1f} % of the squared length" in reader.texts("#plane-share")[0]
        for image in lonely(points, 3).tolist():
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
    true, found = int(table.labels[wrong[0]]), int(table.predictions[wrong[0]])
    expected = np.flatnonzero((table.labels == true) & (table.predictions == found))
    cell = reader.page.locator(f"#confusion button[data-row='{true}'][data-column='{found}']")
    assert cell.inner_text() == str(len(expected))
    cell.click()
    shown = reader.page.locator("#picked-images button.image")
    assert {int(shown.nth(k).get_attribute("data-index")) for k in range(shown.count())} == set(table.index[expected])
    plural = "image" if len(expected) == 1 else "images"
    assert reader.texts("#picked-title") == [f"{NAMES[true]} taken for {NAMES[found]}: {len(expected)} {plural}"]
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
    found = [int(shown.nth(k).get_attribute("data-image")) for k in range(shown.count())]
    assert len(found) == 12
    assert np.allclose(cosines[found], np.sort(cosines)[::-1][:12], atol=1e-4)

    reader.page.keyboard.press("Escape")
    assert bars.count() == 0


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


def test_subspaces_and_doubtful_images(read, explored):
    reader, table = read(explored.path), explored.table
    upper = [(table.angles[k, j, 0], k, j) for k in range(10) for j in range(k + 1, 10)]
    angle, one, other = min(upper)
    row = reader.page.locator("#leaning tbody tr").first
    assert row.locator("button").inner_text() == f"{NAMES[one]} · {NAMES[other]}"
    assert row.locator(".value").first.inner_text() == f"{angle:.1f}°"
    assert (
        reader.page.locator(f"#angles button[data-row='{one}'][data-column='{other}']").inner_text() == f"{angle:.0f}"
    )
    row.locator("button").click()
    assert reader.texts("#planes-title") == [f"The capsule plane of {NAMES[one]}"]
    assert reader.evaluate("plane.partner.label") == other
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
        shown = reader.page.locator(f"#doubtful-{name} button.image")
        found = [int(shown.nth(k).get_attribute("data-image")) for k in range(24)]
        assert np.allclose(scores[found], np.sort(scores)[:24], atol=2e-3)


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
    seen = []
    for _ in range(3):
        press("ArrowRight")
        assert reader.page.locator("#card").is_visible()
        seen.append(int(reader.page.locator("#card").get_attribute("data-image")))
    assert seen == order[:3].tolist()
    press("ArrowLeft")
    press("Enter")
    assert reader.page.locator("#image-panel").get_attribute("data-index") == str(table.index[seen[1]])
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
    ground = "getComputedStyle(document.body).backgroundColor"
    before = reader.evaluate(ground)
    lightness = sum(map(int, before.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (lightness < 150) == (scheme == "dark")
    reader.page.click("#theme")
    assert reader.evaluate(ground) != before


@pytest.mark.parametrize("c", [1, 2])
def test_lines_and_whole_planes(read, explored, tmp_path, c):
    table = made_up(200, 4, c, 12, d=8)
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
    table = made_up(1500, 1000, 4, 8, d=16)
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


def test_a_page_of_2000_images_is_interactive_with_little_work(browser, explored, tmp_path):
    """Its main thread may use two seconds of its own time, however busy the machine is; it takes about 0.4."""
    write_page(made_up(2000, 10, 8, 32), explored.run, tmp_path / "out.html")
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto((tmp_path / "out.html").as_uri())
    page.wait_for_selector("html[data-ready]", timeout=120_000)
    metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
    assert 0 < metrics["TaskDuration"] < 2
    page.context.close()
