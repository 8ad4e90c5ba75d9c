/** Runs a tool to its end and then ends the process, which threads of RocketMQ's store and clients would keep alive. */
final class ToolProcess {
    private ToolProcess() {
    }

    /** A tool with the arguments of its process. */
    interface Tool {
        void run(String[] args) throws Exception;
    }

    /** Exits with 0, or prints what the tool threw, and exits with 1. */
    static void run(Tool tool, String[] args) {
        try {
            tool.run(args);
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
        System.exit(0);
    }
}
