"""Which tests run here: those of the framework that scripts/python_test has made an environment for."""

import os

FRAMEWORK = os.environ.get("CORRO_TEST_FRAMEWORK", "torch")

collect_ignore_glob = {
    "torch": ["*test_tensorflow*.py", "*test_keras*.py"],
    # What no framework is needed for has been tested with torch.
    "tensorflow": ["*test_torch*.py", "*test_alone.py", "*test_rules.py", "*test_jobs.py", "*test_elastic*.py"],
}[FRAMEWORK]
