"""The engines that peers.py measures: how each is installed, which of its settings are searched, and how it is asked."""
