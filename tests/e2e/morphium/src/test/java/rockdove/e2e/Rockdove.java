package rockdove.e2e;

import java.io.BufferedReader;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The program under test, named by $ROCKDOVE_BIN: a server, and messaging commands as nodes written in Rust. */
final class Rockdove implements AutoCloseable {
    private static final Pattern LISTENING = Pattern.compile("listens on 127\\.0\\.0\\.1:(\\d+)");

    /** A started `rockdove` command and what it has printed so far. */
    static final class Command implements AutoCloseable {
        final Process process;
        final List<String> lines = new CopyOnWriteArrayList<>();

        Command(List<String> arguments) throws IOException {
            List<String> line = new ArrayList<>(List.of(program()));
            line.addAll(arguments);
            process = new ProcessBuilder(line).redirectError(ProcessBuilder.Redirect.INHERIT).start();
            process.getOutputStream().close();
            Thread reader = new Thread(this::read);
            reader.setDaemon(true);
            reader.start();
        }

        private void read() {
            try (BufferedReader out = process.inputReader()) {
                out.lines().forEach(lines::add);
            } catch (IOException | java.io.UncheckedIOException ended) {
                lines.add("!! " + ended);
            }
        }

        /** Waits for the end and returns the exit code. */
        int await(long seconds) throws InterruptedException {
            if (!process.waitFor(seconds, TimeUnit.SECONDS)) {
                throw new IllegalStateException("still running after " + seconds + " s: " + process.info());
            }
            return process.exitValue();
        }

        @Override
        public void close() {
            process.destroy();
            try {
                if (!process.waitFor(10, TimeUnit.SECONDS)) {
                    process.destroyForcibly();
                }
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private final Command server;
    private final int port;

    /** Starts a server in memory on a free port, with more options. */
    Rockdove(String... options) throws Exception {
        List<String> all = new ArrayList<>(List.of("serve", "--memory", "--listen", "127.0.0.1:0", "--log", "warn"));
        all.addAll(List.of(options));
        server = new Command(all);
        CompletableFuture<Integer> listening = CompletableFuture.supplyAsync(this::listeningPort);
        port = listening.get(20, TimeUnit.SECONDS);
    }

    private int listeningPort() {
        while (server.process.isAlive()) {
            for (String line : server.lines) {
                Matcher found = LISTENING.matcher(line);
                if (found.find()) {
                    return Integer.parseInt(found.group(1));
                }
            }
            pause(20);
        }
        throw new IllegalStateException("the server ended at start");
    }

    int port() {
        return port;
    }

    /** A messaging command on this server. */
    Command command(Bus.Settings settings, String... arguments) throws IOException {
        List<String> all = new ArrayList<>(List.of(arguments));
        all.addAll(List.of("--uri", "mongodb://127.0.0.1:" + port + "/" + settings.database()));
        all.addAll(List.of("--queue", settings.queue(), "--sender-id", settings.id()));
        all.addAll(List.of("--layout", settings.mode().layout()));
        if (!settings.mode().changeStreams()) {
            all.add("--polling");
        }
        return new Command(all);
    }

    static String program() {
        String program = System.getenv("ROCKDOVE_BIN");
        if (program == null) {
            throw new IllegalStateException("ROCKDOVE_BIN names no rockdove program");
        }
        return program;
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    @Override
    public void close() {
        server.close();
    }
}
