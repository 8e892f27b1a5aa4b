"""What the geometry of capsule subspaces is good for, measured on real data: one file for each question.

Each has `run(data, folder, display, cache=...)`, whose result is ready for JSON, and `grid`, that result as a
table. `data` is a dataset of ten classes by name or path, `"digits"` a quick version; `display` shows how far things
are; `cache` is the folder of downloaded datasets. Networks are trained below `folder` and kept: the same call goes on
after an interruption.
"""
