"""Training that resumes on another number of processes, as `--shard-head` does: one, two, four, and one again."""

import pytest
import torch
import torch.nn.functional as F
from processes import run_together
from safetensors.torch import load_file
from training.resharding_steps import SIZES, SOLVERS, STEPS, D, batch, main, network_of, optimizer_of

from cappronet import CapProNet

pytestmark = pytest.mark.xdist_group("resharding")  # one worker starts the processes, for all tests

WORLDS = (1, 2, 4, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the stages have written, each with its own number of processes."""
    folder = tmp_path_factory.mktemp("resharding")
    codes = run_together(main, *((world, stage, folder) for stage, world in enumerate(WORLDS)))
    assert codes == [[0] * world for world in WORLDS]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("classes", SIZES)
def test_weights_and_momentum_are_those_of_one_process(folder, classes, solver):
    network = network_of(classes, solver)
    optimizer = optimizer_of(network)
    for stage in range(len(WORLDS)):
        for step in range(STEPS * stage, STEPS * (stage + 1)):
            x, y = batch(classes, step)
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
        stored = load_file(folder / f"{classes}-{solver}-{stage}.safetensors")
        expected = {f"model/{name}": tensor for name, tensor in network.state_dict().items()}
        for name, parameter in network.named_parameters():
            expected[f"optimizer/state/{name}/momentum_buffer"] = optimizer.state[parameter]["momentum_buffer"]
        assert stored.keys() == expected.keys()
        for name, tensor in expected.items():
            assert stored[name].dtype == tensor.dtype
            assert (stored[name] - tensor).abs().max() <= 1e-6, f"{name} after stage {stage}"


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_a_model_that_processes_wrote_in_several_files_is_loaded_whole(folder, stage):
    torch.manual_seed(0)
    expected = CapProNet("features", 10, 2, in_channels=1, image_size=D, scale="learned").state_dict()
    assert len(list((folder / f"model-{stage}").glob("model-*-of-00002.safetensors"))) == 2
    state = CapProNet.from_pretrained(folder / f"model-{stage}").state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state[name], tensor)
