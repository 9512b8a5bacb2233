"""What the fleet can take: catalogue, step time, memory, queueing, calibration, resources."""
