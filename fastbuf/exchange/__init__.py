"""The exchange: result partitions, input gates, and the environment that owns them."""
