"""The shard: one process per device that holds weights and KV memory and runs steps. It knows no text."""
