"""Which rollout a request belongs to, under the path that environments import it from."""

from nemo_gym.client.call_log import current_rollout_id as current_rollout_id
from nemo_gym.client.call_log import rollout_context as rollout_context
from nemo_gym.compat.fastapi_servers import RolloutContextMiddleware as RolloutContextMiddleware
from nemo_gym.server.rollout_prefix import maybe_rollout_id_from_run_body as maybe_rollout_id_from_run_body
