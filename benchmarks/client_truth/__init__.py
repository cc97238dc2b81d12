"""How far from the truth load clients stamp: ours and the real vLLM bench client against a server that knows."""
