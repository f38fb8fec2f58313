"""Which server `maitre verify` simulates a turn for: the model and GPU that are named, at the dials in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.cli.server_options import ServerOptions
    from maitre.setup import Setup
    from maitre.verify.deployment import Deployment
    from maitre.verify.evidence import Evidence
    from maitre.verify.foresight.turn import SimulatedTurn
    from maitre.verify.verification import Verification


def expect_turn(answer: Verification, evidence: Evidence, server: ServerOptions, seed: int) -> SimulatedTurn | None:
    """What the verdict's turn would change; None where no dial is turned."""
    from maitre.errors import InputError
    from maitre.verify.foresight.turn import SimulatedTurn, fitted_server, known_server, simulate_turn, turn_for

    turn = turn_for(answer.findings[0].remedy_code)
    if turn is None:
        return None
    try:
        if server.model is not None and server.gpu is not None:
            known = known_server(setup_of(server, answer.deployment, evidence.num_engines))
        else:
            known = fitted_server(answer.deployment, evidence)
    except InputError as error:
        return SimulatedTurn(turn=turn, recommended=None, expectations=None, doubt=f"{error.args[0]}; {error.hint}")
    return simulate_turn(turn, known, evidence, seed)


def setup_of(server: ServerOptions, deployment: Deployment, num_engines: int) -> Setup:
    """The named model and GPU at the dials and with the pool that the deployment shows."""
    from maitre.setup import Setup
    from maitre.vllm import check_server

    model, gpu = server.load()
    config = server.server(model, gpu, deployment.seqs_limit, deployment.tokens_limit)
    known = {
        "max_model_len": deployment.max_model_len,
        "block_size": deployment.block_size,
        "gpu_memory_utilization": deployment.gpu_memory_utilization,
    }
    config = config.model_copy(update={name: value for name, value in known.items() if value is not None})
    check_server(config, model.max_position_embeddings)
    blocks = None if deployment.num_gpu_blocks is None else deployment.num_gpu_blocks // num_engines
    return Setup(config, model, gpu, blocks)
