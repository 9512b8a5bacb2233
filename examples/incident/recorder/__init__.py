"""What records the application: OTLP receiver, engine sampler, processes, summary."""
