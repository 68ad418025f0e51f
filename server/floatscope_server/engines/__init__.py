"""The engines behind ``floatscope_server.database``."""
