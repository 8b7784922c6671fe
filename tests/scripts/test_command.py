"""How commands end before they have begun."""

import subprocess
import sys

import pytest

from local.paths import CHECKOUT

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("raised", "code", "said"), [("KeyboardInterrupt", 130, "interrupted\n"), ("ValueError('x')", 1, "ValueError: x\n")]
)
def test_ctrl_c_during_imports_is_one_word_and_a_mistake_of_ours_stays_a_traceback(
    raised: str, code: int, said: str
) -> None:
    program = f"import scripts; raise {raised}"
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert ("Traceback" in done.stderr) == (code == 1)


def test_the_openai_client_is_imported_by_the_one_check_that_uses_it() -> None:
    program = "import sys, scripts.up, scripts.smoke.__main__; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=False).returncode == 0
