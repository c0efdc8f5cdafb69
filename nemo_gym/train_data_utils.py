"""Data preparation, under the path that outside code imports it from."""

from nemo_gym.common.lazy_exports import lazy_attributes
from nemo_gym.data.prepare import TrainDataProcessor as TrainDataProcessor
from nemo_gym.data.prepare import TrainDataProcessorConfig as TrainDataProcessorConfig
from nemo_gym.data.scan import AvgMinMax as AvgMinMax

__getattr__ = lazy_attributes(__name__, {"prepare_data": "nemo_gym.cli.data:prepare_data"})
