from agpo_bench.cli import main

main()
