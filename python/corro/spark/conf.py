"""Settings of Spark that elastic jobs want: to give to `SparkConf.setAll` or `SparkSession.builder.config`.

`corro.spark.run_elastic` goes on when an executor is lost, as long as Spark starts its tasks again. Spark does so
`spark.task.maxFailures` times for each task, and may leave executors and nodes alone on which tasks have failed.
"""

from __future__ import annotations

__all__ = [
    "SPARK_CONF_ALWAYS_RESTART_FAILED_TASK",
    "SPARK_CONF_BLACKLIST_DISABLED",
    "SPARK_CONF_BLACKLIST_ENABLED",
    "SPARK_CONF_DEFAULT_VALUES",
    "SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK",
    "SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR",
    "SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP",
    "SPARK_CONF_DONT_REUSE_FAILING_NODE",
    "SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP",
    "SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK",
    "SPARK_CONF_REUSE_FAILED_EXECUTOR",
    "SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP",
    "SPARK_CONF_REUSE_FAILING_NODE",
    "SPARK_CONF_REUSE_FAILING_NODE_IN_APP",
    "SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK",
]

# Spark calls it `excludeOnFailure` since 3.1.
_EXCLUDE = "spark.excludeOnFailure"
_NEVER = str(2**31 - 1)

# A task that fails is started again, however often.
SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = ("spark.task.maxFailures", _NEVER)

# Executors and nodes on which tasks fail are left alone, or not.
SPARK_CONF_BLACKLIST_ENABLED = (f"{_EXCLUDE}.enabled", "true")
SPARK_CONF_BLACKLIST_DISABLED = (f"{_EXCLUDE}.enabled", "false")

# Where a task that has failed may be started again.
SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = (f"{_EXCLUDE}.task.maxTaskAttemptsPerExecutor", _NEVER)
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = (f"{_EXCLUDE}.task.maxTaskAttemptsPerExecutor", "1")
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = (f"{_EXCLUDE}.task.maxTaskAttemptsPerNode", _NEVER)
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = (f"{_EXCLUDE}.task.maxTaskAttemptsPerNode", "1")

# Whether an executor on which one task has failed takes other tasks: of this stage, and of this application.
SPARK_CONF_REUSE_FAILED_EXECUTOR = (f"{_EXCLUDE}.stage.maxFailedTasksPerExecutor", _NEVER)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = (f"{_EXCLUDE}.stage.maxFailedTasksPerExecutor", "1")
SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = (f"{_EXCLUDE}.application.maxFailedTasksPerExecutor", _NEVER)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = (f"{_EXCLUDE}.application.maxFailedTasksPerExecutor", "1")

# Whether a node with an executor that was left alone takes tasks: of this stage, and of this application.
SPARK_CONF_REUSE_FAILING_NODE = (f"{_EXCLUDE}.stage.maxFailedExecutorsPerNode", _NEVER)
SPARK_CONF_DONT_REUSE_FAILING_NODE = (f"{_EXCLUDE}.stage.maxFailedExecutorsPerNode", "1")
SPARK_CONF_REUSE_FAILING_NODE_IN_APP = (f"{_EXCLUDE}.application.maxFailedExecutorsPerNode", _NEVER)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = (f"{_EXCLUDE}.application.maxFailedExecutorsPerNode", "1")

# What Spark does if nothing is said.
SPARK_CONF_DEFAULT_VALUES = {
    "spark.task.maxFailures": "4",
    f"{_EXCLUDE}.enabled": "false",
    f"{_EXCLUDE}.task.maxTaskAttemptsPerExecutor": "1",
    f"{_EXCLUDE}.task.maxTaskAttemptsPerNode": "2",
    f"{_EXCLUDE}.stage.maxFailedTasksPerExecutor": "2",
    f"{_EXCLUDE}.stage.maxFailedExecutorsPerNode": "2",
    f"{_EXCLUDE}.application.maxFailedTasksPerExecutor": "2",
    f"{_EXCLUDE}.application.maxFailedExecutorsPerNode": "2",
}
