"""Whether this device computes what its number formats promise: small layers against float64, with bounds that follow
from the formats."""
