"""Callbacks for those who prefer code: one module for each framework, which imports that framework."""
