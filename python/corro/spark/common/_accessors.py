"""What type checkers are to know of parameters: `params` makes `getX` and `setX` of its tables while the program runs.

There is nothing here at run time. A test compares these names with the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from corro.spark.common.backend import Backend
    from corro.spark.common.store import Store

__all__ = ["EstimatorAccessors", "ModelAccessors"]


class EstimatorAccessors:
    """Those of all estimators."""

    getNumProc: Callable[[], int | None]
    setNumProc: Callable[[int | None], Self]
    getModel: Callable[[], Any]
    setModel: Callable[[Any], Self]
    getBackend: Callable[[], Backend | None]
    setBackend: Callable[[Backend | None], Self]
    getStore: Callable[[], Store]
    setStore: Callable[[Store], Self]
    getOptimizer: Callable[[], Any]
    setOptimizer: Callable[[Any], Self]
    getLoss: Callable[[], Any]
    setLoss: Callable[[Any], Self]
    getLossConstructors: Callable[[], Any]
    setLossConstructors: Callable[[Any], Self]
    getLossWeights: Callable[[], list[float] | None]
    setLossWeights: Callable[[Sequence[float] | None], Self]
    getSampleWeightCol: Callable[[], str | None]
    setSampleWeightCol: Callable[[str | None], Self]
    getMetrics: Callable[[], Any]
    setMetrics: Callable[[Any], Self]
    getFeatureCols: Callable[[], list[str]]
    setFeatureCols: Callable[[Sequence[str]], Self]
    getLabelCols: Callable[[], list[str]]
    setLabelCols: Callable[[Sequence[str]], Self]
    getContinuousCols: Callable[[], Any]
    setContinuousCols: Callable[[Any], Self]
    getCategoricalCols: Callable[[], Any]
    setCategoricalCols: Callable[[Any], Self]
    getValidation: Callable[[], float | str | None]
    setValidation: Callable[[float | str | None], Self]
    getGradientCompression: Callable[[], Any]
    setGradientCompression: Callable[[Any], Self]
    getCompressSparseCols: Callable[[], bool]
    setCompressSparseCols: Callable[[bool], Self]
    getBatchSize: Callable[[], int]
    setBatchSize: Callable[[int], Self]
    getValBatchSize: Callable[[], int | None]
    setValBatchSize: Callable[[int | None], Self]
    getEpochs: Callable[[], int]
    setEpochs: Callable[[int], Self]
    getVerbose: Callable[[], int]
    setVerbose: Callable[[int], Self]
    getCallbacks: Callable[[], Any]
    setCallbacks: Callable[[Any], Self]
    getRandomSeed: Callable[[], int | None]
    setRandomSeed: Callable[[int | None], Self]
    getShuffleBufferSize: Callable[[], int | None]
    setShuffleBufferSize: Callable[[int | None], Self]
    getShuffle: Callable[[], bool]
    setShuffle: Callable[[bool], Self]
    getPartitionsPerProcess: Callable[[], int]
    setPartitionsPerProcess: Callable[[int], Self]
    getRunId: Callable[[], str | None]
    setRunId: Callable[[str | None], Self]
    getTrainStepsPerEpoch: Callable[[], int | None]
    setTrainStepsPerEpoch: Callable[[int | None], Self]
    getValidationStepsPerEpoch: Callable[[], int | None]
    setValidationStepsPerEpoch: Callable[[int | None], Self]
    getTransformationFn: Callable[[], Any]
    setTransformationFn: Callable[[Any], Self]
    getTransformationEditFields: Callable[[], Any]
    setTransformationEditFields: Callable[[Any], Self]
    getTransformationRemovedFields: Callable[[], Any]
    setTransformationRemovedFields: Callable[[Any], Self]
    getTrainReaderNumWorkers: Callable[[], Any]
    setTrainReaderNumWorkers: Callable[[Any], Self]
    getValReaderNumWorkers: Callable[[], Any]
    setValReaderNumWorkers: Callable[[Any], Self]
    getReaderPoolType: Callable[[], Any]
    setReaderPoolType: Callable[[Any], Self]
    getLabelShapes: Callable[[], Any]
    setLabelShapes: Callable[[Any], Self]
    getInmemoryCacheAll: Callable[[], bool]
    setInmemoryCacheAll: Callable[[bool], Self]
    getUseGpu: Callable[[], bool]
    setUseGpu: Callable[[bool], Self]
    getMpStartMethod: Callable[[], Any]
    setMpStartMethod: Callable[[Any], Self]
    getBackwardPassesPerStep: Callable[[], int]
    setBackwardPassesPerStep: Callable[[int], Self]
    getTensorflowDatasetPrefetchBufferSize: Callable[[], Any]
    setTensorflowDatasetPrefetchBufferSize: Callable[[Any], Self]
    getDataModule: Callable[[], Any]
    setDataModule: Callable[[Any], Self]


class ModelAccessors:
    """Those of all models."""

    getModel: Callable[[], Any]
    setModel: Callable[[Any], Self]
    setHistory: Callable[[Any], Self]
    setRunId: Callable[[str | None], Self]
    getFeatureColumns: Callable[[], list[str]]
    setFeatureColumns: Callable[[Sequence[str]], Self]
    getLabelColumns: Callable[[], list[str]]
    setLabelColumns: Callable[[Sequence[str]], Self]
    getOutputCols: Callable[[], list[str] | None]
    setOutputCols: Callable[[Sequence[str] | None], Self]
    getBatchSize: Callable[[], int]
    setBatchSize: Callable[[int], Self]
    getUseGpu: Callable[[], bool]
    setUseGpu: Callable[[bool], Self]
    getMetadata: Callable[[], Any]
    setMetadata: Callable[[Any], Self]
