"""Cases of verifiers, under the path of the public NeMo Gym."""

from nemo_gym.compat.verifier_fixture import VerifierFixture as VerifierFixture
from nemo_gym.compat.verifier_fixture import VerifierFixtureError as VerifierFixtureError
from nemo_gym.compat.verifier_fixture import exercise_verifier_fixture as exercise_verifier_fixture
