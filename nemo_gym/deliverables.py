"""Files that agents deliver, under the path of the public NeMo Gym."""

from nemo_gym.compat.folder_functions import IGNORE_FILES as IGNORE_FILES
from nemo_gym.compat.folder_functions import is_deliverable as is_deliverable
