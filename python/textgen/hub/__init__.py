"""Models from a hub: found, downloaded, checked, and kept in the cache that every Hugging Face tool shares."""
