"""A program that uses every public name of `horovod.ray` and its modules. It is never run: type checkers read it, in their
strict modes. `test_typing.py` has them do so, and looks whether a name is missing here.
"""

from queue import Queue
from typing import Any, assert_type

from ray.train import ScalingConfig

import corro.ray
import horovod.ray as hvd_ray
from corro.ray import elastic, elastic_v2, ray_logger, runner, train, utils, worker


def rate() -> float:
    ray_logger.log({"loss": 0.5})
    return 0.5


def scaled(factor: float) -> float:
    return factor * 0.5


class Model:
    def __init__(self, width: int) -> None:
        self.width = width


def fixed() -> None:
    settings = hvd_ray.RayExecutor.create_settings(timeout_s=60, nics={"eth0"})
    assert_type(settings, runner.MiniSettings)
    executor = runner.RayExecutor(settings, num_workers=2, use_gpu=True, gpus_per_worker=1)
    executor.start(executable_cls=Model, executable_args=[3], extra_env_vars={"A": 1})
    assert_type(executor.run(scaled, args=[0.1]), list[float])
    assert_type(executor.execute(lambda model: int(model.width)), list[int])
    assert_type(executor.execute_single(lambda _: "text"), str)
    assert_type(executor.run_remote(scaled, kwargs={"factor": 0.1}), list[Any])
    executor.shutdown()


def by_hand() -> None:
    coordinator = runner.Coordinator(runner.MiniSettings())
    coordinator.register("host", "node", 0)
    assert_type(coordinator.finalize_registration(), dict[int, dict[str, str]])
    assert_type(coordinator.establish_rendezvous("10.0.0.1", 29000), dict[str, str])
    assert_type((coordinator.world_size, coordinator.node_id_string), tuple[int, str])
    told: Queue[Any] = Queue()
    ray_logger.configure(told)
    ours = worker.BaseHorovodWorker(world_rank=0, world_size=1)
    assert_type(ours.env_vars(), dict[str, str])
    assert_type(utils.detect_nics(runner.MiniSettings()), set[str])
    assert_type(utils.nics_to_env_var({"eth0"}), dict[str, str])
    print(corro.ray.BaseHorovodWorker, hvd_ray.BaseHorovodWorker)


def comes_and_goes() -> None:
    settings = corro.ray.ElasticRayExecutor.create_settings(min_num_proc=1, max_num_proc=4, nics=["eth0"])
    executor = elastic.ElasticRayExecutor(settings, cpus_per_slot=2, env_vars={"A": "1"})
    executor.start()
    assert_type(executor.run(rate, callbacks=[print]), list[float])
    assert_type(elastic.RayHostDiscovery(cpus_per_slot=2).find_available_hosts_and_slots(), dict[str, int])
    assert_type(elastic_v2.RayHostDiscovery(cpus_per_worker=2).find_available_hosts_and_slots(), dict[str, int])
    print(hvd_ray.ElasticRayExecutor, corro.ray.RayExecutor)


def by_ray_train() -> None:
    config = train.CorroConfig(nics=("eth0",))
    train.CorroTrainer(rate, corro_config=config, scaling_config=ScalingConfig(num_workers=2)).fit()
