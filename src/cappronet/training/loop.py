"""One explicit training loop on Lightning Fabric, for one process or many, that resumes exactly.

What a step does depends on the recipe, the weights and the number of the step alone: the order of an epoch is drawn
from (seed, epoch), the generator is seeded from (seed, step, rank) at the start of each step, and the learning rate is
a function of the step. So an interrupted run resumes mid-epoch to bit-identical weights.
"""

import math
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from cappronet.data.files import one_line
from cappronet.data.samples import Dataset
from cappronet.data.splits import mixed_seed
from cappronet.models.card import model_card
from cappronet.models.network import CapProNet
from cappronet.reporting import Report, silent
from cappronet.training import metrics as evaluation
from cappronet.training.builders import (
    build_model,
    build_optimizer,
    evaluation_batches,
    learning_rate,
    load_data,
    moving_average,
    training_batches,
)
from cappronet.training.checkpoints import WHAT_TO_DO
from cappronet.training.hardware import Hardware
from cappronet.training.interruption import Interruption
from cappronet.training.objective import Objective
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run, environment

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Hardware", "Interrupted", "Interruption", "Trainer", "train"]


# How gloo and NCCL say that another process is gone.
LOST_PROCESS = re.compile(
    r"Connection (closed|reset) by|Broken pipe|remote process exited|Connection refused", re.IGNORECASE
)


class Interrupted(Exception):  # noqa: N818
    """A signal asked the run to stop; it was saved first."""


def train(
    recipe: Recipe,
    run: Run,
    hardware: Hardware | None = None,
    *,
    report: Report = silent,
    checkpoint_minutes: float = 10.0,
) -> dict[str, Any]:
    """Train what the recipe says, into the run folder, from its checkpoint if it has one; return the summary.

    `report` is called with the epoch, loss, speed and last error as text, the number of steps done, and their total.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM; the run was saved and can be resumed.
        BlockingIOError: another process trains in the folder.
        ConnectionError: another process of the run has ended; the last checkpoint is kept.
        FloatingPointError: the loss diverged; the last good checkpoint is kept.
    """
    hardware = hardware or Hardware()
    hardware.check_launcher()
    fabric = hardware.fabric(recipe.precision)
    fabric.launch()
    kind = Trainer
    if hardware.shard_head:
        from cappronet.training.sharded_head import ShardedTrainer as kind  # noqa: N813
    with Interruption() as interruption:
        trainer = kind(recipe, run, hardware, fabric, report, checkpoint_minutes, interruption)
        with trainer.folder_claimed():
            try:
                return trainer.run_to_the_end()
            except RuntimeError as error:
                if fabric.world_size > 1 and LOST_PROCESS.search(str(error)):
                    raise ConnectionError(
                        f"another process of this run has ended; if it shows no error of its own, it was killed: "
                        f"resume the run in {run.folder} with the same command and --resume"
                    ) from error
                raise


class Trainer:
    """The state of a run between its steps."""

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        hardware: Hardware,
        fabric: "Fabric",
        report: Report,
        checkpoint_minutes: float,
        interruption: Interruption,
    ) -> None:
        self.recipe, self.run, self.fabric, self.report = recipe, run, fabric, report
        self.checkpoint_seconds, self.interruption = 60 * checkpoint_minutes, interruption
        if recipe.ema and hardware.shards:
            raise ValueError(
                "a moving average (--ema) needs whole weights in every process: remove --ema or use --strategy ddp"
            )
        data = load_data(recipe, hardware.cache)
        self.data_name = data.name
        self.network = hardware.prepared(self.built(data), fabric)
        if recipe.channels_last and not hardware.shards:  # FSDP wants parameters in plain order
            self.network.to(memory_format=torch.channels_last)
        compiled: Any = torch.compile(self.network) if recipe.compile else self.network
        self.model = fabric.setup_module(compiled)
        self.raw_optimizer = build_optimizer(recipe, self.network)
        self.optimizer: Any = fabric.setup_optimizers(self.raw_optimizer)
        self.objective = Objective(recipe, data, fabric.device)
        self.average = moving_average(self.network, recipe.ema)
        process = {"device": fabric.device, "rank": fabric.global_rank, "world_size": fabric.world_size}
        self.batches = training_batches(recipe, data, workers=hardware.workers, **process)
        self.test_batches = evaluation_batches(recipe, data, workers=hardware.workers, **process)
        self.steps, self.batch_size = recipe.epochs * len(self.batches), self.batches.batch_size
        self.step, self.seconds, self.saved_step = 0, 0.0, 0
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=fabric.device)
        self.lines: list[dict[str, Any]] = []
        self.ran_on = {"device": str(fabric.device), "processes": fabric.world_size, "data": data.fingerprint()}
        if self.network.weights_origin:
            self.ran_on["pretrained"] = self.network.weights_origin

    @contextmanager
    def folder_claimed(self) -> Iterator[None]:
        """Have the first process make and lock the folder; where it is refused, all processes raise the error."""
        with ExitStack() as stack:
            refusal: Exception | None = None
            if self.fabric.is_global_zero:
                try:
                    stack.enter_context(self.run.claimed(self.recipe))
                    self.run.write_json("environment.json", environment(**self.ran_on))
                except (OSError, ValueError) as error:
                    refusal = error
            if self.fabric.world_size > 1:
                refusal = self.fabric.broadcast(refusal)
            if refusal is not None:
                raise refusal
            yield

    def run_to_the_end(self) -> dict[str, Any]:
        """All epochs from where the run stands, then the trained model and its summary."""
        self.restore()
        started = shown = saved = time.perf_counter()
        before, first_step = self.seconds, self.step
        if self.fabric.is_global_zero and self.step < self.steps:  # the time left is estimated from here
            self.report(f"epoch {self.step // len(self.batches) + 1}/{self.recipe.epochs}", self.step, self.steps)
        self.model.train()
        while self.step < self.steps:
            for x, y in self.batches.epoch(*divmod(self.step, len(self.batches))):
                self.train_step(x, y)
                now = time.perf_counter()
                self.seconds = before + now - started
                if now - shown > 0.2:
                    self.show_progress((self.step - first_step) * self.batch_size / (now - started))
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
            self.show_progress((self.step - first_step) * self.batch_size / (time.perf_counter() - started))
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
        loss = self.loss(x, y)
        self.fabric.backward(loss)
        if self.recipe.clip_norm:
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=self.recipe.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.network)
        self.loss_sum += loss.detach()
        self.step += 1

    def built(self, data: Dataset) -> CapProNet:
        """The network at its start."""
        return build_model(self.recipe, data)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss of a batch."""
        return self.objective(self.model, x, y)

    def measured(self) -> Iterable[tuple[str, float]]:
        """Errors and loss on the evaluation samples, by name."""
        scores, labels = evaluation.predict(self.average or self.model, self.test_batches.epoch(0))
        return evaluation.classification_metrics(self.gathered(scores), self.gathered(labels))

    def finish_epoch(self) -> None:
        """Measure the errors, if the recipe says so, and write the epoch's metrics."""
        self.check_loss()
        epoch = self.step // len(self.batches)
        line = {
            "epoch": epoch,
            "step": self.step,
            "lr": learning_rate(self.recipe, self.step - 1, self.steps),
            "train_loss": self.loss_sum.item() / len(self.batches),
        }
        if epoch % self.recipe.evaluate_every == 0 or epoch == self.recipe.epochs:
            line |= dict(self.measured())
        line["seconds"] = round(self.seconds, 3)
        self.loss_sum.zero_()
        self.lines.append(line)
        if self.fabric.is_global_zero:
            self.run.write_metrics(self.lines)
            self.run.log_epoch(line)

    def finish(self) -> dict[str, Any]:
        """Save the trained model. The summary is written last: its presence marks a finished run."""
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
        # A card is published, with no path of this machine.
        recipe = self.recipe.changed(data=self.data_name, pretrained=Path(self.recipe.pretrained).name)
        network.card = model_card(network.config, summary, self.run.environment, recipe.to_dict())
        self.save_model(network)
        if self.fabric.is_global_zero:
            self.run.write_json("summary.json", summary)
            self.run.remove_checkpoint()
        self.fabric.barrier()
        return summary

    def save_model(self, network: CapProNet) -> None:
        """Write the trained network into the run folder."""
        if self.fabric.is_global_zero:
            network.save_pretrained(self.run.folder)

    def trained(self) -> CapProNet:
        """The trained network, whole and on the CPU, whatever it was spread over.

        Bases that were kept orthonormal are so for this training alone: other optimizers need the exact solver.
        """
        source = self.average.module if self.average is not None else self.network
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(source, options=options)
        config = self.network.config
        network = CapProNet(**config | ({"solver": "cholesky"} if config.get("solver") == "orthonormal" else {}))
        if state:
            network.load_state_dict(state)
        return network.eval()

    def save(self) -> None:
        """Write a checkpoint, unless the loss says that the weights are no longer good."""
        self.check_loss()
        weights = self.weights()
        if self.fabric.is_global_zero:
            self.run.save_checkpoint(
                {
                    "recipe": self.recipe.to_dict(),
                    "step": self.step,
                    "seconds": self.seconds,
                    "loss_sum": self.loss_sum.item(),
                    **weights,
                    "average": None if self.average is None else self.average.state_dict(),
                    "precision": self.fabric.strategy.precision.state_dict(),
                }
            )
        self.saved_step = self.step
        self.fabric.barrier()  # a launcher may end all processes once one has left

    def weights(self) -> dict[str, Any]:
        """The weights and what the optimizer remembers, as a checkpoint holds them."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.network, self.raw_optimizer, options=options)
        return {"model": model, "optimizer": optimizer}

    def load_weights(self, state: dict[str, Any]) -> None:
        """Take the weights, and what the optimizer remembers, from a checkpoint."""
        if "shards" in state:
            raise ValueError("the classes of its head are spread over processes: resume with --shard-head")
        missing = self.network.state_dict().keys() - state["model"].keys()
        if missing:  # which torch would leave as they are
            raise KeyError(min(missing))
        set_state_dict(
            self.network,
            self.raw_optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )

    def restore(self) -> None:
        """Return to the last checkpoint, and drop the metrics of later epochs."""
        state = self.run.load_checkpoint()
        if state is None:
            return
        try:
            self.load_state(state)
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:  # how torch reports a misfit
            reason = f"it has no {error}" if isinstance(error, KeyError) else one_line(error)
            raise ValueError(f"the checkpoint in {self.run.folder} can't be resumed: {reason}; {WHAT_TO_DO}") from None
        self.lines = [line for line in self.run.metrics() if line["step"] <= self.step]

    def load_state(self, state: dict[str, Any]) -> None:
        """Take everything from a checkpoint that `save` puts in."""
        saved = Recipe.from_dict(state["recipe"], str(self.run.folder))
        if saved != self.recipe:
            ours, theirs = self.recipe.to_dict(), saved.to_dict()
            names = ", ".join(name for name in ours if ours[name] != theirs[name])
            raise ValueError(f"the checkpoint in {self.run.folder} belongs to another recipe: {names} differ")
        self.load_weights(state)
        self.step = self.saved_step = state["step"]
        self.seconds = state["seconds"]
        self.loss_sum.fill_(state["loss_sum"])
        average, precision = state["average"], state["precision"]
        if self.average is not None:
            self.average.load_state_dict(average)
        self.fabric.strategy.precision.load_state_dict(precision)

    def check_loss(self) -> None:
        """Stop if the loss has diverged."""
        if math.isfinite(self.loss_sum.item()):
            return
        saved = f"the checkpoint of step {self.saved_step} is kept" if self.saved_step else "nothing was saved yet"
        epoch = (self.step - 1) // len(self.batches) + 1
        raise FloatingPointError(
            f"the loss diverged in epoch {epoch}, at or before step {self.step}: it is not a finite number; {saved}; "
            f"try a smaller --lr, a --warmup or --clip-norm 1"
        )

    def show_progress(self, images_per_second: float) -> None:
        """Tell the caller how far the run is."""
        self.check_loss()
        if not self.fabric.is_global_zero:
            return
        done = self.step % len(self.batches)
        loss = self.loss_sum.item() / done if done else (self.lines[-1]["train_loss"] if self.lines else math.nan)
        epoch = math.ceil(self.step / len(self.batches))
        error = f"  error {self.errors()[-1]:.2f} %" if self.errors() else ""
        text = f"epoch {epoch}/{self.recipe.epochs}  loss {loss:.3f}{error}  {images_per_second:,.0f} images/s"
        self.report(text, self.step, self.steps)

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
