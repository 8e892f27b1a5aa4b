"""One explicit training loop on Lightning Fabric, for one process or many, that resumes exactly.

What a step does depends on the recipe, the weights and the number of the step alone: the order of an epoch is drawn
from (seed, epoch), the generator is seeded from (seed, step, rank) at the start of each step, and the learning rate is
a function of the step. So a run that was cut off in the middle of an epoch ends with the weights of one that was not.
"""

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from cappronet import evaluation
from cappronet.datasets import mixed_seed
from cappronet.distributed import sharded, share_batch_norm
from cappronet.extras import require
from cappronet.ingredients import (
    build_model,
    build_optimizer,
    evaluation_batches,
    learning_rate,
    moving_average,
    prepare,
    training_batches,
)
from cappronet.model import CapProNet
from cappronet.model_card import model_card
from cappronet.recipe import Recipe
from cappronet.runs import Run, environment

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Hardware", "Interrupted", "Progress", "Trainer", "train"]


@dataclass(frozen=True)
class Hardware:
    """Where a run takes place. It decides the time, not the outcome."""

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    workers: int = 0
    cache: str | None = None

    def fabric(self, precision: str) -> "Fabric":
        """Lightning Fabric for these devices."""
        fabric: Fabric = require("lightning_fabric", "train").Fabric(
            accelerator=self.accelerator,
            devices=self.devices,
            num_nodes=self.num_nodes,
            strategy=sharded(self.devices * self.num_nodes) if self.strategy == "fsdp" else self.strategy,
            precision=precision,
        )
        return fabric

    def check_launcher(self) -> None:
        """Refuse to be one of several processes that a launcher started and that would not know of each other."""
        by_torchrun = os.environ.get("WORLD_SIZE", "1") if "TORCHELASTIC_RUN_ID" in os.environ else "1"
        started = max(int(by_torchrun), int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")))
        if started > 1 and self.devices * self.num_nodes == 1:
            raise ValueError(
                f"{started} processes were started, but --devices and --num-nodes say 1: give both as they were "
                f"started, and --strategy ddp"
            )

    def prepared(self, network: CapProNet, fabric: "Fabric") -> CapProNet:
        """The network as these processes need it: with batch statistics over all of them."""
        if fabric.world_size > 1:
            share_batch_norm(network, fabric.device)
        return network


@dataclass(frozen=True)
class Progress:
    """How far a run has come, for whoever draws a bar."""

    step: int
    steps: int
    epoch: int
    epochs: int
    loss: float
    images_per_second: float
    error: float | None


class Interrupted(Exception):  # noqa: N818
    """A signal asked the run to stop; it was saved first."""


class Interruption:
    """Turns Ctrl-C and SIGTERM into a flag while a run goes on; a second one stops at once.

    What comes within a second is the same request: Ctrl-C reaches the launcher and its processes, and it passes it on.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._noted = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # Python gives signals to no other
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is None:
            self.signal, self._noted = number, now
        elif now > self._noted + 1:
            raise KeyboardInterrupt


def train(
    recipe: Recipe,
    run: Run,
    hardware: Hardware | None = None,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
    checkpoint_minutes: float = 10.0,
) -> dict[str, Any]:
    """Train what the recipe says, into the run folder, from its checkpoint if it has one; return the summary.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; the run was saved and can be resumed.
        FloatingPointError: the loss was no longer a number; the last good checkpoint is kept.
    """
    hardware = hardware or Hardware()
    hardware.check_launcher()
    fabric = hardware.fabric(recipe.precision)
    fabric.launch()
    with Interruption() as interruption:
        return Trainer(recipe, run, hardware, fabric, on_progress, checkpoint_minutes, interruption).run_to_the_end()


class Trainer:
    """The state of a run between its steps."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        hardware: Hardware,
        fabric: "Fabric",
        on_progress: Callable[[Progress], None],
        checkpoint_minutes: float,
        interruption: Interruption,
    ) -> None:
        self.recipe, self.run, self.fabric, self.on_progress = recipe, run, fabric, on_progress
        self.checkpoint_seconds, self.interruption = 60 * checkpoint_minutes, interruption
        if recipe.ema and hardware.strategy == "fsdp":
            raise ValueError("a moving average (--ema) needs whole weights in every process: leave it out, or use ddp")
        data = prepare(recipe, hardware.cache)
        self.data_name = data.name
        self.network = hardware.prepared(build_model(recipe, data), fabric)
        if recipe.channels_last and hardware.strategy != "fsdp":  # FSDP wants parameters in plain order
            self.network.to(memory_format=torch.channels_last)
        compiled: Any = torch.compile(self.network) if recipe.compile else self.network
        self.model = fabric.setup_module(compiled)
        self.raw_optimizer = build_optimizer(recipe, self.network)
        self.optimizer: Any = fabric.setup_optimizers(self.raw_optimizer)
        self.average = moving_average(self.network, recipe.ema)
        place = {"device": fabric.device, "rank": fabric.global_rank, "world_size": fabric.world_size}
        self.batches = training_batches(recipe, data, workers=hardware.workers, **place)
        self.test_batches = evaluation_batches(recipe, data, workers=hardware.workers, **place)
        self.steps, self.batch_size = recipe.epochs * len(self.batches), self.batches.batch_size
        self.step, self.seconds, self.saved_step = 0, 0.0, 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=fabric.device)
        self.lines: list[dict[str, Any]] = []
        if fabric.is_global_zero:
            if not run.begun:
                run.begin(recipe)
            found = {"device": str(fabric.device), "processes": fabric.world_size, "data": data.fingerprint()}
            run.write_json("environment.json", environment(**found))

    def run_to_the_end(self) -> dict[str, Any]:
        """All epochs from where the run stands, then the trained model and its summary."""
        self.restore()
        started = shown = saved = time.perf_counter()
        before, first_step = self.seconds, self.step
        self.model.train()
        while self.step < self.steps:
            for x, y in self.batches.epoch(*divmod(self.step, len(self.batches))):
                self.train_step(x, y)
                now = time.perf_counter()
                self.seconds = before + now - started
                if now - shown > 0.2:
                    self.report((self.step - first_step) * self.batch_size / (now - started))
                    shown = now
                if self.step % len(self.batches) == 0:
                    break  # the epoch's end has its own checkpoint
                if self.must_stop():
                    self.save()
                    raise Interrupted
                if now - saved > self.checkpoint_seconds:
                    self.save()
                    saved = now
            self.finish_epoch()
            self.report((self.step - first_step) * self.batch_size / (time.perf_counter() - started))
            self.save()
            saved = time.perf_counter()
            if self.step < self.steps and self.must_stop():
                raise Interrupted
        return self.finish()

    def train_step(self, x: Tensor, y: Tensor) -> None:
        """One update. Whatever it draws at random depends on the seed, the step and the rank alone."""
        torch.manual_seed(mixed_seed("step", self.recipe.seed, self.step, self.fabric.global_rank))
        for group in self.raw_optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, self.step, self.steps) * group["multiple"]
        loss = F.cross_entropy(self.model(x), y, label_smoothing=self.recipe.label_smoothing)
        self.fabric.backward(loss)
        if self.recipe.clip_norm:
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.recipe.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.network)
        self.loss_sum += loss.detach()
        self.step += 1

    def finish_epoch(self) -> None:
        """Measure the errors, where the recipe wants it, and write the epoch's line."""
        self.check_loss()
        epoch = self.step // len(self.batches)
        line = {
            "epoch": epoch,
            "step": self.step,
            "lr": learning_rate(self.recipe, self.step - 1, self.steps),
            "train_loss": self.loss_sum.item() / len(self.batches),
        }
        if epoch % self.recipe.evaluate_every == 0 or epoch == self.recipe.epochs:
            scores, labels = evaluation.predict(self.average or self.model, self.test_batches.epoch(0))
            scores, labels = self.gathered(scores), self.gathered(labels)
            line |= dict(evaluation.classification_metrics(scores, labels))
        line["seconds"] = round(self.seconds, 3)
        self.loss_sum.zero_()
        self.lines.append(line)
        if self.fabric.is_global_zero:
            self.run.write_metrics(self.lines)
            self.run.log_epoch(line)

    def finish(self) -> dict[str, Any]:
        """Save the trained model; the summary comes last, as the sign that the run is complete."""
        network = self.trained()
        last = self.lines[-1]
        summary: dict[str, Any] = {
            "data": self.data_name,
            "backbone": self.recipe.backbone,
            "head": self.recipe.head_label,
            "seed": self.recipe.seed,
            **{name: last[name] for name in ("error", "error_top5", "loss", "calibration_error") if name in last},
            "best_error": min(self.errors()),
            "train_loss": last["train_loss"],
            "parameters": sum(p.numel() for p in network.parameters()),
            "head_parameters": sum(p.numel() for p in network.head.parameters()),
            **dict(evaluation.capsule_statistics(network.head)),
            "epochs": self.recipe.epochs,
            "seconds": last["seconds"],
            "images_per_second": round(self.steps * self.batch_size / last["seconds"], 1),
        }
        if self.fabric.is_global_zero:
            recipe = self.recipe.changed(data=self.data_name)  # a card is published, with no path of this machine
            network.card = model_card(network.config, summary, self.run.environment, recipe.to_dict())
            network.save_pretrained(self.run.folder)
            self.run.write_json("summary.json", summary)
            self.run.remove_checkpoint()
        self.fabric.barrier()
        return summary

    def trained(self) -> CapProNet:
        """The trained network, whole and on the CPU, whatever it was spread over."""
        source = self.average.module if self.average is not None else self.network
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(source, options=options)
        network = CapProNet(**self.network.config)
        if state:
            network.load_state_dict(state)
        return network.eval()

    def save(self) -> None:
        """Write a checkpoint, unless the loss says that the weights are no longer good."""
        self.check_loss()
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.network, self.raw_optimizer, options=options)
        if self.fabric.is_global_zero:
            self.run.save_checkpoint(
                {
                    "recipe": self.recipe.to_dict(),
                    "step": self.step,
                    "seconds": self.seconds,
                    "loss_sum": self.loss_sum.item(),
                    "model": model,
                    "optimizer": optimizer,
                    "average": None if self.average is None else self.average.state_dict(),
                    "precision": self.fabric.strategy.precision.state_dict(),
                }
            )
        self.saved_step = self.step
        self.fabric.barrier()  # a launcher may end all processes once one has left

    def restore(self) -> None:
        """Go back to the last checkpoint, and drop the lines of epochs after it."""
        state = self.run.load_checkpoint()
        if state is None:
            return
        if state["recipe"] != self.recipe.to_dict():
            other = [name for name, value in self.recipe.to_dict().items() if state["recipe"].get(name) != value]
            raise ValueError(f"the checkpoint in {self.run.folder} is of another recipe: {', '.join(other)} differ")
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(
            self.network,
            self.raw_optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=options,
        )
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.step = self.saved_step = state["step"]
        self.seconds = state["seconds"]
        self.loss_sum.fill_(state["loss_sum"])
        self.lines = [line for line in self.run.metrics() if line["step"] <= self.step]

    def check_loss(self) -> None:
        """Stop where the loss is no longer a number."""
        if math.isfinite(self.loss_sum.item()):
            return
        kept = f"the checkpoint of step {self.saved_step} is kept" if self.saved_step else "nothing was saved yet"
        epoch = (self.step - 1) // len(self.batches) + 1
        raise FloatingPointError(
            f"the loss is no longer a finite number in epoch {epoch}, at or before step {self.step}; {kept}; "
            f"try a smaller --lr, a --warmup or --clip-norm 1"
        )

    def report(self, images_per_second: float) -> None:
        """Tell the caller how far the run is."""
        self.check_loss()
        if not self.fabric.is_global_zero:
            return
        done = self.step % len(self.batches)
        loss = self.loss_sum.item() / done if done else (self.lines[-1]["train_loss"] if self.lines else math.nan)
        error = self.errors()[-1] if self.errors() else None
        epoch = min(self.step // len(self.batches) + 1, self.recipe.epochs)
        self.on_progress(Progress(self.step, self.steps, epoch, self.recipe.epochs, loss, images_per_second, error))

    def errors(self) -> list[float]:
        """The errors measured so far."""
        return [line["error"] for line in self.lines if "error" in line]

    def must_stop(self) -> bool:
        """Whether any process was asked to stop."""
        asked = self.interruption.signal is not None
        if self.fabric.world_size == 1:
            return asked
        votes = torch.tensor(float(asked), device=self.fabric.device)
        torch.distributed.all_reduce(votes)
        return bool(votes > 0)

    def gathered(self, part: Tensor) -> Tensor:
        """The rows of all processes, in the order of the images."""
        if self.fabric.world_size == 1:
            return part
        parts: list[Any] = [None] * self.fabric.world_size
        torch.distributed.all_gather_object(parts, part.split(self.test_batches.shares()))
        return torch.cat([rows for batch in zip(*parts, strict=True) for rows in batch])
