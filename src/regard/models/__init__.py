"""Models as users hold them: a core model with its tokenizer or front end, and its tasks."""

from __future__ import annotations

from regard.models.base import Model, ModelOutput, choose_device
from regard.models.dual_encoder import DualEncoderModel
from regard.models.graph_model import GraphModel
from regard.models.image_captioner import ImageCaptioner
from regard.models.image_encoder import ImageEncoder
from regard.models.image_generator import DrawnImage, ImageGenerator
from regard.models.language_model import LanguageModel
from regard.models.loading import load
from regard.models.memory_network import MemoryNetworkModel
from regard.models.object_detector import Detection, ObjectDetector
from regard.models.policy import Policy
from regard.models.series_model import SeriesModel
from regard.models.sound_models import (
    CTCModel,
    SoundClassifier,
    SpectrogramClassifier,
    WaveformModel,
)
from regard.models.spans import Answer, Filling, Suspect, Tagged
from regard.models.speech_synthesizer import Speech, SpeechSynthesizer
from regard.models.speech_to_text import SpeechToText
from regard.models.text_encoder import TextEncoder
from regard.models.translator import Translator
from regard.models.visual_questions import VisualQuestionModel
