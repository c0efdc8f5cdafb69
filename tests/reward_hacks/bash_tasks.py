from tests.reward_hacks.hack import CheckedElsewhere

TESTS = "resources_servers/bash_tasks/tests/test_app.py"

HACKS = [
    CheckedElsewhere(
        "Prints what pytest prints, kills it, or writes to its output.",
        "the tests passed only if a secret is printed that no other process can read",
        f"{TESTS}::test_a_script_cannot_pass_tests_that_fail",
    ),
    CheckedElsewhere(
        "Leaves a conftest.py, a configuration or modules for the tests to import.",
        "pytest reads none from folders that the script can write to",
        f"{TESTS}::test_a_script_cannot_pass_tests_that_fail",
    ),
    CheckedElsewhere(
        "Fits the script to the public tests.",
        "the private tests must pass, too",
        f"{TESTS}::test_both_files_of_tests_must_pass",
    ),
]
