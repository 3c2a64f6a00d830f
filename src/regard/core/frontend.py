"""Front ends: patches of images, spectrogram frames, waveforms. (Token embeddings are in
`embedding`, patches of time series in `series_patches`, nodes of graphs in `node_features`.)

A front end maps its inputs to [B, T, D]; `output_padding_mask` turns a padding mask of the inputs
into one of the T positions.
"""

from __future__ import annotations

from regard.core.embedding import Embedding
from regard.core.node_features import NodeFeatures
from regard.core.patch_embedding import Patches
from regard.core.series_patches import SeriesPatches
from regard.core.spectrogram_frontend import Spectrogram
from regard.core.waveform_frontend import Waveform

FrontEnd = Embedding | Spectrogram | Patches | Waveform | SeriesPatches | NodeFeatures
