"""What single notebooks need: training on the digits, judges for exercises, small readers."""
