"""Model folders that are damaged or hostile: each is refused in one line, or is exactly the model that was saved."""

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cappronet import CapProNet
from cappronet.reporting import Report, silent
from experiments.robustness.outcomes import HANDLED, REFUSED, row

__all__ = ["HOSTILE", "attack_models", "damaged", "damages", "hostile_folders", "outcome", "save_victim"]

FILES = ("config.json", "model.safetensors")


def _each(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


NAN, INFINITY, HUGE, DEEP = float("nan"), float("inf"), 10**15, [[[[[[[[1]]]]]]]]
# Entries that a stranger may have put into a config.json. None of them describes the model of the weights next to it.
HOSTILE: tuple[dict[str, Any], ...] = (
    *_each("backbone", "hf-hub:attacker/model", "hf_hub:attacker/model", "HF-HUB:attacker/model"),
    *_each("backbone", "local-dir:/etc", "local-dir:..", "https://example.com/x", "file:///etc/passwd"),
    *_each("backbone", "timm/resnet18", "../resnet8", "/etc/passwd", "a\\b", "resnet8\n", "\x1b[31m", "", "x" * 10**6),
    *_each("backbone", "resnet9998", "resnet9998_d99999", "resnet99998", "resnet8_d99999", "resnet0"),
    *_each("backbone", "resnet18.no_such_tag", "wrn_28_10", "densenet_bc_100_12", "pixels", "features"),
    *_each("backbone", None, 8, True, ["resnet8"], {"name": "resnet8"}, DEEP),
    *_each("num_classes", 0, -1, 5, HUGE, 4.0, "4", None, True),
    {"num_classes": 10**5, "classes": ["x"] * 10**5},
    {"num_classes": 5, "classes": ["x"] * 5},
    *_each("capsule_dim", 0, -1, 2, 10**9, HUGE, 10**400, 3.0, "3", None),
    *({"capsule_dim": 10**9, "device": device} for device in ("cpu", "cuda", "meta")),
    {"dtype": "float64"},
    *_each("in_channels", 0, 2, HUGE, "1", None),
    {"in_channels": 10**5, "mean": [0.0] * 10**5, "std": [1.0] * 10**5},
    *_each("image_size", 0, -8, 10**6, HUGE, [8], [8, 8, 8], [10**6, 10**6], "8", None, 8.0, DEEP),
    *_each("resize", -1, 10**6, HUGE, [10**6, 10**6], [1], "8", None, 0.5),
    *_each("pool", 0, -1, 2, 10**6, HUGE, 1.0, "1", None),
    *_each("dropout", -1, 2, NAN, INFINITY, "0", None),
    *_each("backbone_dropout", -1, 0.5, NAN, INFINITY, "0", None),
    *_each("mean", [NAN], [INFINITY], ["0"], [[0.0]], [10**400], [None]),
    *_each("std", [0], [0.0], [-1], [NAN], [INFINITY], [None], ["1"]),
    *_each("scale", NAN, INFINITY, 0, -1, "learn", [1], None),
    *_each("eps", NAN, INFINITY, -1, "0"),
    *_each("solver", "hyperpower", "svd", None, 1),
    *_each("head", "none", "linear", "subcenter", "cosine", "", None, 3, ["capsule"]),
    *_each("classes", None, "abcd", [], [[]] * 4, [{}] * 4, [None] * 4, {"0": "a"}),
    *({name: 1} for name in ("surprise", "a\nb", "self")),
    *_each("sha256", "0" * 64, {}, {"config.json": "", "model.safetensors": ""}),
)


def save_victim(folder: Path) -> CapProNet:
    """Save the model that is attacked, of every kind of part, small enough to be loaded a hundred times in seconds."""
    model = CapProNet(
        "resnet8", 4, 3, in_channels=1, image_size=8, normalize=True, scale="learned", classes=["a", "b", "c", "d"]
    )
    model.save_pretrained(folder)
    return model.eval()


def outcome(folder: Path, model: CapProNet) -> str:
    """What loading does: `refused` in one line, `handled`, `silent` if it is another model, or `crashed`."""
    try:
        loaded = CapProNet.from_pretrained(folder)
    except (ValueError, OSError) as error:
        return REFUSED if str(error).isprintable() and len(str(error)) < 1000 else "crashed"
    except Exception:
        return "crashed"
    state, expected = loaded.state_dict(), model.state_dict()
    same = state.keys() == expected.keys() and all(
        tensor.numpy().tobytes() == expected[name].numpy().tobytes() for name, tensor in state.items()
    )
    return HANDLED if same and loaded.config == model.config else "silent"


def hostile_folders(folder: Path) -> Iterator[dict[str, Any]]:
    """Change the configuration in a folder to each of `HOSTILE` in turn, without a digest that would tell."""
    path = folder / "config.json"
    whole = path.read_text()
    original = {name: value for name, value in json.loads(whole).items() if name != "sha256"}
    for values in HOSTILE:
        path.write_text(json.dumps({**original, **values}))
        yield values
    path.write_text(whole)


def flip(content: bytearray, chance: random.Random) -> None:
    """Flip one bit."""
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def truncate(content: bytearray, chance: random.Random) -> None:
    """Lose the end."""
    del content[chance.randrange(len(content)) :]


def extend(content: bytearray, chance: random.Random) -> None:
    """Get more bytes at the end."""
    content += chance.randbytes(chance.randrange(1, 100))


def overwrite(content: bytearray, chance: random.Random) -> None:
    """Lose a block to other bytes."""
    start, size = chance.randrange(len(content)), chance.randrange(1, 200)
    content[start : start + size] = chance.randbytes(size)


def move(content: bytearray, chance: random.Random) -> None:
    """Lose some bytes in the middle, and get them back somewhere else."""
    start, size = chance.randrange(len(content)), chance.randrange(1, 200)
    block = content[start : start + size]
    del content[start : start + size]
    where = chance.randrange(len(content) + 1)
    content[where:where] = block


damages: dict[str, Callable[[bytearray, random.Random], None]] = {
    "flipped bits": flip,
    "truncated": truncate,
    "extended": extend,
    "overwritten": overwrite,
    "moved": move,
}


def damaged(folder: Path, kind: str, count: int, seed: int = 0) -> Iterator[str]:
    """Damage the two files of a model in turn, `count` times; the name of the file that is damaged just now."""
    chance = random.Random(f"{kind} {seed}")
    whole = {name: (folder / name).read_bytes() for name in FILES}
    for number in range(count):
        name = FILES[number % len(FILES)]
        content = bytearray(whole[name])
        damages[kind](content, chance)
        (folder / name).write_bytes(content)
        yield name
        (folder / name).write_bytes(whole[name])


def attack_models(flips: int = 1000, others: int = 200, seed: int = 0, report: Report = silent) -> list[dict[str, Any]]:
    """Attack a model folder in every way, and count what loading does.

    Args:
        flips: single flipped bits, half of them in each file.
        others: damages of each other kind.
        seed: of the damages.
        report: called with the kind of damage, the damages done and their number.

    Returns:
        A row for each kind of damage and file. `handled` is the same model, as after a change to white space in a JSON
        file; `silent` is another model, and `crashed` anything but one line. The last two are failures.
    """
    outcomes: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = save_victim(folder)
        for kind in damages:
            count = flips if kind == "flipped bits" else others
            for number, file in enumerate(damaged(folder, kind, count, seed)):
                report(kind, number, count)
                outcomes.setdefault(f"{kind}, {file}", []).append(outcome(folder, model))
        for number, _ in enumerate(hostile_folders(folder)):
            report("hostile configurations", number, len(HOSTILE))
            # Each of them describes another model: one that is loaded has not been checked.
            loaded = outcome(folder, model)
            outcomes.setdefault("hostile configurations", []).append("silent" if loaded == HANDLED else loaded)
    return [row(kind, values) for kind, values in outcomes.items()]
