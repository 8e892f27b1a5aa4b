"""Modules that only some jobs need: imported when they do, with an error that says what to install."""

from importlib import import_module
from typing import Any

__all__ = ["require"]


def require(module: str, extra: str) -> Any:
    """Import a module of one of the package's extras.

    Args:
        module: its name, such as `"timm"`.
        extra: the extra of this package that installs it.

    Raises:
        ModuleNotFoundError: it is missing.
        ImportError: torch and torchvision do not match, which breaks everything that imports torchvision.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise ModuleNotFoundError(
            f"this needs {missing.partition('.')[0]}, which is not installed: pip install 'cappronet[{extra}]'",
            name=missing,
        ) from error
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        raise ImportError(
            "torch and torchvision do not match; reinstall both together: pip install -U torch torchvision"
        ) from error
