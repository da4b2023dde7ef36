"""Sources: data that need not fit in memory, from which a fit reads one batch after the other."""

from credax.model.sources.generated import function
from credax.model.sources.items import dataset
from credax.model.sources.mapped import arrays
from credax.model.sources.source import Source
from credax.model.sources.tabular import files

__all__ = ["Source", "arrays", "dataset", "files", "function"]
