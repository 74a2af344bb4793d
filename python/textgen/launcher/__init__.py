"""The launcher: settings, model and memory plan, and the processes of one server. It imports no torch."""
